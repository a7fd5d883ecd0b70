"use strict";
/* The pad: a paper to draw on, and pictures to drop. */

const PEN = 0.07; /* its width on the paper */
const MOVE = 1 / 24; /* how far a key moves the pen */
const SLOW = 80; /* milliseconds of a network that cannot follow the pen */

/* ---- the paper ---- */

function drawPaper() {
  const side = Math.round(paper.clientWidth * devicePixelRatio);
  const context = paper.getContext("2d");
  paper.width = paper.height = side;
  if (given) {
    context.imageSmoothingEnabled = given.canvas.width > 100;
    context.imageSmoothingQuality = "high";
    context.drawImage(given.canvas, ...given.box, 0, 0, side, side);
  }
  context.strokeStyle = getComputedStyle(paper).color;
  context.lineWidth = PEN * side;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(stroke[0][0] * side, stroke[0][1] * side);
    for (const [x, y] of stroke) context.lineTo(x * side, y * side);
    context.stroke();
  }
  if (pen && document.activeElement === paper) {
    context.beginPath();
    context.arc(pen.x * side, pen.y * side, (PEN / 2) * side, 0, 2 * Math.PI);
    context.lineWidth = 2 * devicePixelRatio;
    context.strokeStyle = getComputedStyle(paper).outlineColor;
    context.stroke();
  }
  find("prompt").hidden = Boolean(given || strokes.length || pen);
  find("undo").disabled = !strokes.length;
  find("clear").disabled = !given && !strokes.length;
}

function clear() {
  strokes.length = 0;
  given = pen = null;
  update({ replay: false });
}

function beginStroke(point) {
  given = null;
  strokes.push([point]);
}

function followPointer(event) {
  const box = paper.getBoundingClientRect();
  const place = (e) => [(e.clientX - box.left) / box.width, (e.clientY - box.top) / box.height];
  if (event.type === "pointerdown") {
    if (event.button !== 0 || !network) return;
    pen = null;
    paper.setPointerCapture(event.pointerId);
    beginStroke(place(event));
  } else {
    if (!paper.hasPointerCapture(event.pointerId)) return;
    strokes.at(-1).push(...(event.getCoalescedEvents?.() ?? [event]).map(place));
  }
  if (spent < SLOW) update({ replay: false });
  else drawPaper(); /* and computed when the pen is lifted */
}

function followKeys(event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const key = event.key === "Spacebar" ? " " : event.key;
  if (!network || event.ctrlKey || event.metaKey || (!(key in moves) && ![" ", "Escape", "Backspace"].includes(key)))
    return;
  event.preventDefault();
  if (key === "Escape") return clear();
  if (key === "Backspace") return undo();
  pen ??= { x: 0.5, y: 0.2, down: false };
  if (key === " ") {
    pen.down = !pen.down;
    if (pen.down) beginStroke([pen.x, pen.y]);
  } else {
    pen.x = Math.min(1, Math.max(0, pen.x + moves[key][0] * MOVE));
    pen.y = Math.min(1, Math.max(0, pen.y + moves[key][1] * MOVE));
    if (pen.down) strokes.at(-1).push([pen.x, pen.y]);
  }
  update({ replay: key === " " && !pen.down });
}

function undo() {
  strokes.pop();
  if (pen) pen.down = false;
  update({ replay: false });
}

/* ---- pictures ---- */

async function takePicture(file) {
  try {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
    const canvas = element("canvas", { width: bitmap.width, height: bitmap.height });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "white"; /* where it is transparent */
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0);
    const { data, width, height } = context.getImageData(0, 0, canvas.width, canvas.height);
    const box = centerOf(width, height, model.shape, model.margin);
    give(fitPicture(data, width, height, model), canvas, { box });
  } catch {
    if (given) clear(); /* what is shown would seem to be of this file */
    find("hint").textContent = `“${file.name}” is no picture that this browser can read. Try a PNG or JPEG file.`;
  }
}
