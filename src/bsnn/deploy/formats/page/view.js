"use strict";
/* What the page shows of a computed input: scores and spikes, at one time step. */

const find = (id) => document.getElementById(id);
const percent = (share) => `${share > 0.9995 || share < 0.0005 ? Math.round(100 * share) : (100 * share).toFixed(1)} %`;

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/* A color of the style, which are all written #rrggbb. */
function colorOf(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

/* Writes pixels, of which `color` says the color by row and column. */
function paint(canvas, height, width, color) {
  canvas.height = height;
  canvas.width = width;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) image.data.set(color(y, x), 4 * (y * width + x));
  context.putImageData(image, 0, 0);
}

/* An image in its colors, or a spectrogram in those of the page, with low bands below. */
function paintFrame(canvas, frame, { shape: [channels, height, width], divisor, sound }) {
  const [on, off] = [colorOf("--spike"), colorOf("--still")];
  paint(canvas, height, width, (y, x) => {
    if (sound) {
      const level = (frame[(height - 1 - y) * width + x] / 2 ** sound.fraction_bits) * sound.std + sound.mean;
      return [...on.map((color, c) => level * color + (1 - level) * off[c]), 255];
    }
    const levels = [0, 1, 2].map((c) => frame[(y * width + x) * channels + Math.min(c, channels - 1)]);
    return [...levels.map((level) => (255 * level) / divisor), 255];
  });
}

/* The scores of the likeliest classes: a row for each, with its share after every time step and now. */
class Scores {
  constructor(model, place) {
    this.model = model;
    const numbers = Array.from({ length: model.time_steps }, (_, t) => (model.time_steps > 12 ? "" : t + 1));
    this.head = this.row("columnheader", numbers);
    this.rows = Array.from({ length: Math.min(10, model.classes.length) }, () => this.row("cell", numbers.fill("")));
    this.head.whole.classList.add("note");
    this.head.steps.setAttribute("aria-label", "after each time step");
    place.append(this.head.whole, ...this.rows.map((row) => row.whole));
  }

  row(role, texts) {
    const cells = texts.map((text) => element("i", { textContent: text }));
    const name = element("span", { className: "class", role: role === "cell" ? "rowheader" : role });
    const steps = element("span", { className: "steps", role }, ...cells);
    const bar = element("span", { className: "bar", ariaHidden: "true" }, element("b", {}));
    const number = element("span", { className: "number", role });
    return {
      whole: element("div", { className: "score", role: "row" }, name, steps, bar, number),
      name,
      cells,
      bar,
      number,
      steps,
    };
  }

  /* `shares` holds the probabilities after each time step; without any, the names alone are shown. */
  show(shares, t) {
    const { classes } = this.model;
    const many = classes.length > this.rows.length;
    const order = classes.map((_, c) => c);
    /* The likeliest if there are many, which keep their place while time passes. */
    if (many && shares.length) order.sort((a, b) => shares.at(-1)[b] - shares.at(-1)[a]);
    const best = shares.length ? shares[t].indexOf(Math.max(...shares[t])) : -1;
    this.head.number.textContent = `t = ${t + 1}`;
    this.head.cells.forEach((cell, step) => cell.classList.toggle("now", step === t));
    this.rows.forEach((row, i) => {
      const c = order[i];
      const after = shares.map((step) => step[c]);
      row.whole.classList.toggle("best", c === best);
      row.name.textContent = row.name.title = many && !shares.length ? "" : classes[c];
      row.number.textContent = shares.length ? percent(after[t]) : "";
      row.bar.style.setProperty("--share", after[t] ?? 0);
      row.steps.setAttribute("aria-label", after.map(percent).join(", "));
      row.cells.forEach((cell, step) => {
        cell.style.setProperty("--share", after[step] ?? 0);
        cell.classList.toggle("now", step === t);
      });
    });
  }
}

/* The spikes of a layer: a tile for each channel, a dot for each neuron. */
class Raster {
  constructor(layer, model, place) {
    const [channels, height, width] = layer.shape;
    this.layer = layer;
    this.upwards = model.kind === "sound"; /* low bands lie below */
    /* Somewhat wider than high, in full rows if that can be. */
    const across = Math.sqrt((1.6 * channels * (height + 1)) / (width + 1));
    const full = Array.from({ length: channels }, (_, i) => i + 1).filter(
      (n) => channels % n === 0 && n > across / 1.6 && n < across * 1.6,
    );
    this.columns =
      full.sort((a, b) => Math.abs(Math.log(a / across)) - Math.abs(Math.log(b / across)))[0] ?? Math.ceil(across);
    this.canvas = element("canvas", { role: "img" });
    this.rate = element("span", { className: "number" });
    this.bars = Array.from({ length: model.time_steps }, () => element("i", {}));
    const head = element("figcaption", {}, element("b", { textContent: layer.name }), this.rate);
    const shape = element("span", { className: "note", textContent: layer.shape.join(" × ") });
    const bars = element("span", { className: "rates", ariaHidden: "true" }, ...this.bars);
    const className = this.columns * (width + 1) > 260 ? "dense" : "";
    place.append(element("figure", { className }, head, this.canvas, element("p", {}, shape, bars)));
  }

  /* `steps` holds the spikes of each time step; none at all is an empty picture. */
  show(steps, t) {
    const [channels, height, width] = this.layer.shape;
    const spikes = steps[t] ?? new Uint8Array(channels * height * width);
    const rows = Math.ceil(channels / this.columns);
    const [on, off] = [colorOf("--spike"), colorOf("--still")];
    paint(this.canvas, rows * (height + 1) - 1, this.columns * (width + 1) - 1, (y, x) => {
      const channel = Math.floor(y / (height + 1)) * this.columns + Math.floor(x / (width + 1));
      const [row, column] = [y % (height + 1), x % (width + 1)];
      if (row === height || column === width || channel >= channels) return [0, 0, 0, 0];
      const from = this.upwards ? height - 1 - row : row;
      return [...(spikes[(from * width + column) * channels + channel] ? on : off), 255];
    });
    const rates = steps.map((step) => rateOf([step]));
    this.rate.textContent = steps.length ? percent(rates[t]) : "";
    this.canvas.setAttribute(
      "aria-label",
      `${this.layer.name}: ${steps.length ? percent(rates[t]) : "none"} of the neurons fire`,
    );
    this.bars.forEach((bar, step) => {
      bar.style.setProperty("--share", steps.length ? rates[step] / Math.max(...rates, 0.01) : 0);
      bar.classList.toggle("now", steps.length > 0 && step === t);
    });
  }
}

/* The share of neurons that fire. */
function rateOf(layers) {
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  return sum(layers.map(sum)) / sum(layers.map((spikes) => spikes.length));
}
