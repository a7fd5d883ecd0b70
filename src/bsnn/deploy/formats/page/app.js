"use strict";
/* The page: what a person draws, drops or says goes to the network, and what it computes is shown. */

const model = JSON.parse(find("model").textContent);
const PAUSE = Math.min(320, 5000 / model.time_steps); /* milliseconds that a time step is shown */
const way = model.kind === "sound" ? "sound" : model.drawing ? "drawing" : "picture"; /* of giving an input */
const paper = find("paper");
const scores = new Scores(model, find("scores"));
const rasters = model.layers.map((layer) => new Raster(layer, model, find("rasters")));
const strokes = []; /* what is drawn */
let network = null;
let given = null; /* what is not drawn: its frame, and a canvas of which a box is shown */
let steps = []; /* what was computed */
let spent = 0; /* milliseconds that it took */
let shown = model.time_steps - 1; /* a time step */
let player = 0; /* the timer */
let pen = null; /* where keys draw: x, y and whether it is down */

/* ---- computing ---- */

function compute(frame) {
  const begin = performance.now();
  steps = network.run([frame]);
  spent = performance.now() - begin;
  find("spent").textContent =
    `${model.time_steps} time steps in ${spent < 10 ? spent.toFixed(1) : Math.round(spent)} ms`;
  paintFrame(find("seen"), frame, model);
}

/* Takes an input that is not drawn. */
function give(frame, canvas, { box = [0, 0, canvas.width, canvas.height], replay = true } = {}) {
  strokes.length = 0;
  pen = null;
  given = { frame, canvas, box };
  find("hint").textContent = WORDS[way].hint;
  update({ replay });
}

function update({ replay }) {
  if (!network) return;
  const frame = given?.frame ?? (strokes.length ? rasterize(strokes, model) : null);
  stop();
  if (frame) compute(frame);
  else forget();
  drawPaper();
  if (replay && frame && !matchMedia("(prefers-reduced-motion: reduce)").matches) play();
  else show(model.time_steps - 1);
}

function forget() {
  steps = [];
  find("seen").width = 0;
}

/* ---- showing ---- */

function show(t) {
  shown = t;
  find("step").value = t + 1;
  find("step-label").textContent = `Time step ${t + 1} of ${model.time_steps}`;
  rasters.forEach((raster, i) =>
    raster.show(
      steps.map((step) => step.spikes[i]),
      t,
    ),
  );
  for (const id of ["step", "play"]) find(id).disabled = !steps.length;
  const shares = steps.map((step, i) => sharesOf(model, step.outputs, i + 1));
  scores.show(shares, t);
  if (!steps.length) {
    for (const id of ["answer", "share", "rates"]) find(id).textContent = "";
    find("spent").textContent = WORDS[way].nothing;
    return;
  }
  const best = shares[t].indexOf(Math.max(...shares[t]));
  const none = rejects(model, steps[t].outputs, t + 1);
  const answer = none ? "none of these" : model.classes[best];
  const share = percent(shares[t][best]);
  find("answer").textContent = answer;
  find("answer").className = answer.length > 12 ? "long" : "";
  find("share").textContent = none ? `nearest: ${model.classes[best]}, ${share}` : share;
  find("rates").textContent = `${percent(rateOf(steps[t].spikes))} of all neurons fire at time step ${t + 1}.`;
}

function play() {
  stop();
  show(0);
  player = setInterval(() => {
    if (shown + 1 < model.time_steps) show(shown + 1);
    if (shown + 1 === model.time_steps) stop();
  }, PAUSE);
  find("play").textContent = "■";
}

function stop() {
  clearInterval(player);
  player = 0;
  find("play").textContent = "▶";
}

/* ---- beginning ---- */

const WORDS = {
  drawing: {
    title: model.classes.every((name) => /^[0-9]$/.test(name)) ? "Draw a digit" : "Draw",
    prompt: "draw here",
    nothing: "Nothing yet: draw something.",
    hint: "Or drop or paste a picture. With keys: arrows move the pen, space lowers and lifts it, escape clears.",
    paper: "Paper",
    tools: ["clear", "undo", "choose"],
  },
  picture: {
    title: "Drop a picture",
    prompt: "drop a picture here",
    nothing: "Nothing yet: give it a picture.",
    hint: "Drop or paste a picture, or open a file; its center is seen.",
    paper: "Picture",
    tools: ["clear", "choose"],
  },
  sound: {
    title: "Say a word",
    prompt: "what is heard appears here",
    nothing: "Nothing yet: say a word.",
    hint: "Record a word, listen all the time, or drop or open a sound file.",
    paper: "Spectrogram",
    tools: ["record", "listen", "choose", "clear"],
  },
};

function describe() {
  const neurons = model.layers.reduce((sum, { shape: [c, h, w] }) => sum + c * h * w, 0);
  const words = WORDS[way];
  find("name").textContent = model.name;
  find("facts").textContent =
    `A binary spiking network: ${neurons.toLocaleString("en")} neurons, ${model.time_steps} time steps, ` +
    `${model.weight_bytes.toLocaleString("en")} bytes of weights, ${model.classes.length} classes`;
  find("input-title").textContent = words.title;
  find("prompt").textContent = words.prompt;
  find("hint").textContent = words.hint;
  find("choose").textContent = way === "sound" ? "Open a file" : "Open a picture";
  find("file").accept = way === "sound" ? "audio/*" : "image/*";
  for (const tool of ["record", "listen", "clear", "undo", "choose"]) find(tool).hidden = !words.tools.includes(tool);
  find("step").max = model.time_steps;
  find("seen").setAttribute("aria-label", "The input as the network sees it");
  paper.setAttribute("aria-label", words.paper);
  if (way !== "drawing") {
    paper.tabIndex = -1;
    paper.setAttribute("role", "img");
  }
}

/* The golden vectors, if they are samples. */
function showSamples() {
  if (!model.golden.real) return;
  goldenInputs(model).forEach(([frame], n) => {
    const canvas = element("canvas", {});
    paintFrame(canvas, frame, model);
    const button = element(
      "button",
      { type: "button", className: "sample", ariaLabel: `Test sample ${n + 1}` },
      canvas,
    );
    button.addEventListener("click", () => give(frame, canvas));
    find("samples").append(button);
  });
}

function judge(state, text) {
  find("verdict").dataset.state = state;
  find("verdict").textContent = text;
}

function connect() {
  if (way === "drawing") {
    for (const type of ["pointerdown", "pointermove"]) paper.addEventListener(type, followPointer);
    for (const type of ["pointerup", "pointercancel"])
      paper.addEventListener(type, () => strokes.length && update({ replay: true }));
    paper.addEventListener("keydown", followKeys);
    for (const type of ["focus", "blur"]) paper.addEventListener(type, drawPaper);
  }
  const take = (file) => file && (way === "sound" ? takeSound(file) : takePicture(file));
  find("clear").addEventListener("click", clear);
  find("undo").addEventListener("click", undo);
  find("play").addEventListener("click", () => (player ? stop() : play()));
  find("step").addEventListener("input", (event) => {
    stop();
    show(event.target.value - 1);
  });
  find("record").addEventListener("click", () => record().catch(explain));
  find("listen").addEventListener("click", () => listen().catch(explain));
  find("choose").addEventListener("click", () => find("file").click());
  find("file").addEventListener("change", (event) => {
    take(event.target.files[0]);
    event.target.value = "";
  });
  document.addEventListener("paste", (event) => take(event.clipboardData.files[0]));
  for (const type of ["dragover", "drop", "dragleave"])
    document.addEventListener(type, (event) => {
      event.preventDefault();
      find("pad").classList.toggle("over", type === "dragover");
      if (type === "drop") take(event.dataTransfer.files[0]);
    });
  addEventListener("resize", drawPaper);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawPaper();
    show(shown);
  });
}

async function begin() {
  describe();
  forget();
  show(model.time_steps - 1);
  drawPaper();
  try {
    const loaded = await Network.load(model);
    const number = model.golden.outputs.length;
    const right = countGolden(loaded);
    if (right < number) {
      judge(
        "wrong",
        `${number - right} of ${number} golden vectors differ from the bsnn engine. ` +
          "This page cannot be trusted in this browser, and takes no input.",
      );
      return;
    }
    judge("right", `All ${number} golden vectors match the bsnn engine bit for bit.`);
    network = loaded;
    showSamples();
    connect();
  } catch (error) {
    judge(
      "wrong",
      `This browser cannot run the network (${error.message}). ` +
        "It takes Chrome 111, Firefox 119, Safari 16.4 or newer.",
    );
  }
}

begin();
