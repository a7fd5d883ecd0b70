"""Events in the C99 export: the events of a camera, as they come, summed to the frames that the network takes."""

from pathlib import Path

from bsnn.data.events import EVENT_SCALE
from bsnn.deploy.camera import why_no_events
from bsnn.deploy.schema import InputSpec

_SOURCE = Path(__file__).with_name("events") / "events.c"
NAMES = ("events.c", "events.h")
"""The files of `event_files`."""


def event_files(spec: InputSpec) -> dict[str, str]:
    """The files that sum events; none if `why_no_events` has a reason."""
    if spec.kind != "event" or why_no_events(spec):
        return {}
    rows, columns = spec.decode["sensor"]
    return {"events.c": _SOURCE.read_text(), "events.h": _header(spec, rows, columns, bool(spec.decode.get("turned")))}


def _header(spec: InputSpec, rows: int, columns: int, turned: bool) -> str:
    present = bool(spec.decode.get("presence"))
    meaning = "255 if there was any event" if present else f"events times {EVENT_SCALE:g}, at most 255"
    # By a quarter, clockwise.
    row, column = ("(x)", f"({rows - 1} - (y))") if turned else ("(y)", "(x)")
    return f"""/* From events of a camera of {rows} rows and {columns} columns to the input: BSNN_FRAMES frames
   of bytes, each {meaning}.

       bsnn_events_by_number(input, 4000);
       for (;;) {{
           x, y, time, brighter = the next event of the camera;
           if (bsnn_events_push(input, x, y, time, brighter) == BSNN_EVENTS_FULL) {{
               class = bsnn_predict(input, outputs);
               bsnn_events_by_number(input, 4000);
               bsnn_events_push(input, x, y, time, brighter);
           }}
       }}

   In training, a recording is cut by number: each frame has equally many of its events. Choose a number of events that
   recordings of the training set have. Frames of equal time suit networks that were trained on such frames. */

#ifndef BSNN_EVENTS_H
#define BSNN_EVENTS_H

#include "model.h"

#define BSNN_EVENTS_ROWS {rows}
#define BSNN_EVENTS_COLUMNS {columns}
#define BSNN_EVENTS_LEVEL {255 if present else int(EVENT_SCALE)}

/* Where an event at x and y lies in a frame. */
#define BSNN_EVENTS_ROW(x, y) {row}
#define BSNN_EVENTS_COLUMN(x, y) {column}

#ifdef __cplusplus
extern "C" {{
#endif

/* Begins an input, with all frames empty, that takes so many events; frame i begins with event
   i * number / BSNN_FRAMES. */
void bsnn_events_by_number(bsnn_input input[BSNN_INPUT_SIZE], uint32_t number);

/* The same with an input that takes all events of so many microseconds, in frames of equal time, from its first event
   on. The clock may run over; events come in the order of time. */
void bsnn_events_by_time(bsnn_input input[BSNN_INPUT_SIZE], uint32_t microseconds);

/* What became of an event: it was taken, it lies beyond the end of the input, which is complete, or it is no pixel. */
enum {{ BSNN_EVENTS_TAKEN, BSNN_EVENTS_FULL, BSNN_EVENTS_OUTSIDE }};

int bsnn_events_push(bsnn_input input[BSNN_INPUT_SIZE], int x, int y, uint32_t time, int brighter);

#ifdef __cplusplus
}}
#endif

#endif
"""
