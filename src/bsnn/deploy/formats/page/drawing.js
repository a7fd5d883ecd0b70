"use strict";
/* From pen strokes to an image like those that the network was trained on: scaled into the same box, centered in the
   same way, with a pen of the same width. Strokes are lines, so the pen stays as it is when they are enlarged. */

const SAMPLES = 4; /* across a pixel; a pixel's gray is the share of its samples that are inked */

/* Which samples the pen covers; points in pixels, rows of `width` pixels. */
function inked(strokes, radius, height, width) {
  const rows = height * SAMPLES;
  const columns = width * SAMPLES;
  const grid = new Uint8Array(rows * columns);
  const reach = radius * SAMPLES;
  const clip = (x, most) => Math.min(most, Math.max(0, x));
  for (const stroke of strokes)
    stroke.forEach((point, i) => {
      /* Sample i lies at i + 1/2. */
      const [x, y] = point.map((v) => v * SAMPLES - 0.5);
      const [px, py] = stroke[Math.max(0, i - 1)].map((v) => v * SAMPLES - 0.5);
      const [dx, dy] = [px - x, py - y];
      const length = dx * dx + dy * dy;
      const top = clip(Math.ceil(Math.min(y, py) - reach), rows);
      const bottom = clip(Math.floor(Math.max(y, py) + reach) + 1, rows);
      const left = clip(Math.ceil(Math.min(x, px) - reach), columns);
      const right = clip(Math.floor(Math.max(x, px) + reach) + 1, columns);
      for (let row = top; row < bottom; row++)
        for (let column = left; column < right; column++) {
          const along = length ? clip(((column - x) * dx + (row - y) * dy) / length, 1) : 0;
          const [ax, ay] = [column - x - along * dx, row - y - along * dy];
          if (ax * ax + ay * ay <= reach * reach) grid[row * columns + column] = 1;
        }
    });
  return grid;
}

/* The box that some points lie in. */
function boundsOf(strokes) {
  const points = strokes.flat();
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  return { left, top, width: Math.max(...xs) - left, height: Math.max(...ys) - top };
}

/* Shears strokes so that their leftmost points at the top and at the bottom lie above each other. */
function upright(strokes) {
  const { top, height } = boundsOf(strokes);
  if (height < 0.1) return strokes;
  const near = (y) => strokes.flat().filter((point) => Math.abs(point[1] - y) <= 0.15 * height);
  const [above, below] = [near(top), near(top + height)].map((points) => Math.min(...points.map((point) => point[0])));
  const slant = Math.min(0.5, Math.max(-0.5, (above - below) / height));
  return strokes.map((stroke) => stroke.map(([x, y]) => [x + slant * (y - top), y]));
}

/* Moves and scales strokes so that they fill the box of the settings, pen included. */
function placed(strokes, settings, radius, height, width) {
  const bounds = boundsOf(strokes);
  const room = [settings.box[1] * width - 2 * radius, settings.box[0] * height - 2 * radius].map((x) =>
    Math.max(0.01, x),
  );
  /* A dot is not blown up. */
  let [sx, sy] = [room[0] / Math.max(bounds.width, 0.05), room[1] / Math.max(bounds.height, 0.05)];
  sx = Math.min(sx, sy * settings.stretch);
  sy = Math.min(sy, sx * settings.stretch);
  const [cx, cy] = [bounds.left + bounds.width / 2, bounds.top + bounds.height / 2];
  return strokes.map((stroke) => stroke.map(([x, y]) => [width / 2 + (x - cx) * sx, height / 2 + (y - cy) * sy]));
}

function inkOf(grid) {
  return grid.reduce((sum, bit) => sum + bit, 0) / grid.length;
}

/* Moves strokes so that their ink has its center of mass in the middle. */
function balanced(strokes, grid, height, width) {
  let [x, y, sum] = [0, 0, 0];
  grid.forEach((bit, i) => {
    x += bit * ((i % (width * SAMPLES)) + 0.5);
    y += bit * (Math.floor(i / (width * SAMPLES)) + 0.5);
    sum += bit;
  });
  const [dx, dy] = [width / 2 - x / sum / SAMPLES, height / 2 - y / sum / SAMPLES];
  return strokes.map((stroke) => stroke.map((point) => [point[0] + dx, point[1] + dy]));
}

/* The image [H, W] of what was drawn: strokes, each a list of points [x, y] on a square of side 1. */
function rasterize(drawn, model) {
  const { shape, divisor, drawing: settings } = model;
  const strokes = settings.upright ? upright(drawn) : drawn;
  const [, height, width] = shape;
  let radius = settings.pen / 2;
  if (!settings.pen) {
    /* All images of the set have about the same amount of ink. */
    let [low, high] = [0.1, Math.min(height, width) / 2];
    for (let i = 0; i < 10; i++) {
      radius = (low + high) / 2;
      const found = inkOf(inked(placed(strokes, settings, radius, height, width), radius, height, width));
      if (found < settings.ink) low = radius;
      else high = radius;
    }
  }
  let lines = placed(strokes, settings, radius, height, width);
  let grid = inked(lines, radius, height, width);
  if (settings.balanced) {
    lines = balanced(lines, grid, height, width);
    grid = inked(lines, radius, height, width);
  }
  const counts = new Float64Array(height * width);
  grid.forEach((bit, i) => {
    const [row, column] = [Math.floor(i / (width * SAMPLES)), i % (width * SAMPLES)];
    counts[Math.floor(row / SAMPLES) * width + Math.floor(column / SAMPLES)] += bit;
  });
  const gray = (count) => rint((count / SAMPLES ** 2) * divisor);
  return Uint8Array.from(counts, (count) => (settings.dark ? divisor - gray(count) : gray(count)));
}
