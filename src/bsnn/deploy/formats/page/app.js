"use strict";
/* The page: what a person draws or drops goes to the network, and what it computes is shown. */

const PAUSE = 320; /* milliseconds that a time step is shown */
const PEN = 0.07; /* its width on the paper */
const MOVE = 1 / 24; /* how far a key moves the pen */

const model = JSON.parse(find("model").textContent);
const drawable = Boolean(model.drawing);
const paper = find("paper");
const scores = new Scores(model, find("scores"));
const rasters = model.layers.map((layer) => new Raster(layer, model.time_steps, find("rasters")));
const strokes = []; /* what is drawn */
let network = null;
let picture = null; /* what was dropped: a canvas, or null */
let steps = []; /* what was computed */
let shown = model.time_steps - 1; /* a time step */
let player = 0; /* the timer */
let pen = null; /* where keys draw: x, y and whether it is down */

/* ---- computing ---- */

function compute(frame) {
  const begin = performance.now();
  steps = network.run([frame]);
  const spent = performance.now() - begin;
  find("spent").textContent =
    `${model.time_steps} time steps in ${spent < 10 ? spent.toFixed(1) : Math.round(spent)} ms`;
  paintFrame(find("seen"), frame, model);
}

/* The frame of what is on the paper, or null. */
function currentFrame() {
  if (picture) {
    const { data, width, height } = picture.getContext("2d").getImageData(0, 0, picture.width, picture.height);
    return fitPicture(data, width, height, model);
  }
  return strokes.length ? rasterize(strokes, model) : null;
}

function update({ replay }) {
  if (!network) return;
  const frame = currentFrame();
  stop();
  if (frame) compute(frame);
  else forget();
  drawPaper();
  if (replay && frame && !matchMedia("(prefers-reduced-motion: reduce)").matches) play();
  else show(model.time_steps - 1);
}

function forget() {
  steps = [];
  paintFrame(find("seen"), new Uint8Array(model.shape[0] * model.shape[1] * model.shape[2]), model);
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
    find("spent").textContent = drawable ? "Nothing yet: draw something." : "Nothing yet: give it a picture.";
    return;
  }
  const best = shares[t].indexOf(Math.max(...shares[t]));
  find("answer").textContent = model.classes[best];
  find("answer").className = model.classes[best].length > 12 ? "long" : "";
  find("share").textContent = percent(shares[t][best]);
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

/* ---- the paper ---- */

function drawPaper() {
  const side = Math.round(paper.clientWidth * devicePixelRatio);
  const context = paper.getContext("2d");
  paper.width = paper.height = side;
  if (picture) {
    const [left, top, width, height] = centerOf(picture.width, picture.height, model.shape, model.margin);
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, left, top, width, height, 0, 0, side, side);
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
  find("prompt").hidden = Boolean(picture || strokes.length || pen);
  find("undo").disabled = !strokes.length;
  find("clear").disabled = !picture && !strokes.length;
}

function clear() {
  strokes.length = 0;
  picture = pen = null;
  update({ replay: false });
}

function beginStroke(point) {
  picture = null;
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
  update({ replay: false });
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
  if (!network || !file) return;
  try {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
    const canvas = element("canvas", { width: bitmap.width, height: bitmap.height });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "white"; /* where it is transparent */
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0);
    context.getImageData(0, 0, 1, 1); /* fails here if the picture is too large */
    strokes.length = 0;
    pen = null;
    picture = canvas;
    find("hint").textContent = hint();
    update({ replay: true });
  } catch {
    find("hint").textContent = `“${file.name}” is no picture that this browser can read. Try a PNG or JPEG file.`;
  }
}

function showSamples() {
  if (!model.golden.real) return;
  goldenInputs(model).forEach((frames, n) => {
    const canvas = element("canvas", {});
    paintFrame(canvas, frames[0], model);
    const button = element("button", { type: "button", className: "sample" }, canvas);
    button.setAttribute("aria-label", `Test sample ${n + 1}`);
    button.addEventListener("click", () => {
      strokes.length = 0;
      pen = null;
      picture = element("canvas", {});
      paintFrame(picture, frames[0], model);
      stop();
      compute(frames[0]);
      drawPaper();
      play();
    });
    find("samples").append(button);
  });
}

/* ---- beginning ---- */

const hint = () =>
  drawable
    ? "Or drop or paste a picture. With the keyboard, arrows move the pen, space lowers and lifts it, escape clears."
    : "Drop or paste a picture, or choose a file; its center is seen.";

function describe() {
  const digits = model.classes.every((name) => /^[0-9]$/.test(name));
  const neurons = model.layers.reduce((sum, { shape: [c, h, w] }) => sum + c * h * w, 0);
  find("name").textContent = model.name;
  find("facts").textContent =
    `A binary spiking network: ${neurons.toLocaleString("en")} neurons, ${model.time_steps} time steps, ` +
    `${model.weight_bytes.toLocaleString("en")} bytes of weights, ${model.classes.length} classes`;
  find("input-title").textContent = drawable ? (digits ? "Draw a digit" : "Draw") : "Drop a picture";
  find("prompt").textContent = drawable ? "draw here" : "drop a picture here";
  find("hint").textContent = hint();
  find("undo").hidden = !drawable;
  find("step").max = model.time_steps;
  find("seen").setAttribute("aria-label", "The input as the network sees it");
  paper.setAttribute("aria-label", drawable ? "Paper" : "Picture");
  if (!drawable) {
    paper.tabIndex = -1;
    paper.setAttribute("role", "img");
  }
}

function judge(state, text) {
  find("verdict").dataset.state = state;
  find("verdict").textContent = text;
}

function listen() {
  if (drawable) {
    for (const type of ["pointerdown", "pointermove"]) paper.addEventListener(type, followPointer);
    for (const type of ["pointerup", "pointercancel"])
      paper.addEventListener(type, () => strokes.length && update({ replay: true }));
    paper.addEventListener("keydown", followKeys);
    for (const type of ["focus", "blur"]) paper.addEventListener(type, drawPaper);
  }
  find("clear").addEventListener("click", clear);
  find("undo").addEventListener("click", undo);
  find("play").addEventListener("click", () => (player ? stop() : play()));
  find("step").addEventListener("input", (event) => {
    stop();
    show(event.target.value - 1);
  });
  find("choose").addEventListener("click", () => find("file").click());
  find("file").addEventListener("change", (event) => {
    takePicture(event.target.files[0]);
    event.target.value = "";
  });
  document.addEventListener("paste", (event) => takePicture(event.clipboardData.files[0]));
  for (const type of ["dragover", "drop", "dragleave"])
    document.addEventListener(type, (event) => {
      event.preventDefault();
      find("pad").classList.toggle("over", type === "dragover");
      if (type === "drop") takePicture(event.dataTransfer.files[0]);
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
    listen();
  } catch (error) {
    judge(
      "wrong",
      `This browser cannot run the network (${error.message}). ` +
        "It takes WebAssembly with SIMD: Chrome 91, Firefox 89, Safari 16.4 or newer.",
    );
  }
}

begin();
