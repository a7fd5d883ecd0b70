"use strict";
/* From a picture to the bytes that `bsnn predict` makes of it: the largest center of the right proportions, resized
   with Pillow's bilinear filter, whose triangles are stretched when a picture shrinks, and with its roundings. Tall
   pictures may differ by one level: Pillow 13 and later resize them down first. */

const PRECISION = 22; /* bits of a weight */

/* For each place of the result, the first place that it reads and its weights. What is read lies from `from` to `to`,
   which Pillow has as 32-bit floats. */
function weightsOf(size, from, to, result) {
  const [begin, end] = [Math.fround(from), Math.fround(to)];
  const scale = Math.fround(end - begin) / result;
  const stretch = Math.max(1, scale);
  return Array.from({ length: result }, (_, at) => {
    const center = begin + (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - stretch + 0.5));
    const last = Math.min(size, Math.trunc(center + stretch + 0.5));
    const raw = Array.from({ length: last - first }, (_, i) =>
      Math.max(0, 1 - Math.abs((first + i - center + 0.5) / stretch)),
    );
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, weights: raw.map((weight) => Math.trunc(0.5 + (weight / sum) * 2 ** PRECISION)) };
  });
}

/* Resizes rows: [height][size][channels] to [height][result][channels]. */
function resizedRows(pixels, height, size, channels, plan) {
  const out = new Uint8Array(height * plan.length * channels);
  for (let y = 0; y < height; y++)
    plan.forEach(({ first, weights }, x) => {
      for (let c = 0; c < channels; c++) {
        let sum = 2 ** (PRECISION - 1);
        for (let i = 0; i < weights.length; i++) sum += pixels[(y * size + first + i) * channels + c] * weights[i];
        out[(y * plan.length + x) * channels + c] = Math.min(255, Math.floor(sum / 2 ** PRECISION));
      }
    });
  return out;
}

function transposed(pixels, height, width, channels) {
  const out = new Uint8Array(pixels.length);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      for (let c = 0; c < channels; c++) out[(x * height + y) * channels + c] = pixels[(y * width + x) * channels + c];
  return out;
}

/* The center of a picture of `width` × `height` that a network of this shape sees: left, top, width and height. */
function centerOf(width, height, shape, margin) {
  const scale = Math.min(width / shape[2], height / shape[1]) / margin;
  const [w, h] = [shape[2] * scale, shape[1] * scale];
  return [(width - w) / 2, (height - h) / 2, w, h];
}

/* A frame [H, W, C] from pixels [height][width][4], which are opaque. */
function fitPicture(rgba, width, height, model) {
  const [channels, rows, columns] = model.shape;
  const pixels = new Uint8Array(width * height * channels);
  for (let i = 0; i < width * height; i++)
    if (channels === 1)
      pixels[i] = (rgba[4 * i] * 19595 + rgba[4 * i + 1] * 38470 + rgba[4 * i + 2] * 7471 + 0x8000) >> 16;
    else for (let c = 0; c < 3; c++) pixels[3 * i + c] = rgba[4 * i + c];
  let frame = pixels;
  if (width !== columns || height !== rows || model.margin !== 1) {
    const [left, top, w, h] = centerOf(width, height, model.shape, model.margin);
    const across = resizedRows(pixels, height, width, channels, weightsOf(width, left, left + w, columns));
    const turned = transposed(across, height, columns, channels);
    const down = resizedRows(turned, columns, height, channels, weightsOf(height, top, top + h, rows));
    frame = transposed(down, columns, rows, channels);
  }
  /* Some data sets, such as the digits, have other levels of gray than 256. */
  return model.divisor === 255 ? frame : frame.map((byte) => rint(byte * (model.divisor / 255)));
}
