"use strict";
/* From samples at the network's rate to its integers: the mel-spectrogram of `bsnn.data.audio`, in decibels below the
   loudest band. Arithmetic is in 64-bit floats, as there, so an integer may differ by one, and hardly ever does. */

/* A sound of `length` samples: zeros at the end of a shorter one, the middle of a longer one. */
function fitSound(samples, length) {
  const fitted = new Float64Array(length);
  const start = Math.max(0, Math.floor((samples.length - length) / 2));
  fitted.set(samples.subarray(start, start + length));
  return fitted;
}

/* The Fourier transform of complex numbers in place; their number is a power of 2. */
function transform(re, im) {
  const size = re.length;
  for (let i = 1, j = 0; i < size; i++) {
    let bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let half = 1; half < size; half *= 2)
    for (let k = 0; k < half; k++) {
      const [c, s] = [Math.cos((Math.PI * k) / half), -Math.sin((Math.PI * k) / half)];
      for (let a = k, b = k + half; a < size; a += 2 * half, b += 2 * half) {
        const [x, y] = [re[b] * c - im[b] * s, re[b] * s + im[b] * c];
        [re[b], im[b]] = [re[a] - x, im[a] - y];
        [re[a], im[a]] = [re[a] + x, im[a] + y];
      }
    }
}

/* The power in each mel band of a frame. */
function bandPower(frame, bands) {
  const re = frame.map((x, n) => x * (0.5 - 0.5 * Math.cos((2 * Math.PI * n) / frame.length)));
  const im = new Float64Array(frame.length);
  transform(re, im);
  return bands.map(({ first, weights }) =>
    weights.reduce((sum, weight, i) => sum + weight * (re[first + i] ** 2 + im[first + i] ** 2), 0),
  );
}

/* The frame [bands, frames] of a sound, samples between -1 and 1. */
function soundFrame(samples, model) {
  const { sound, shape } = model;
  const [, bands, frames] = shape;
  const padded = new Float64Array(sound.samples + sound.window);
  padded.set(fitSound(samples, sound.samples), sound.window / 2);
  const power = Array.from({ length: frames }, (_, t) =>
    bandPower(padded.slice(t * sound.hop, t * sound.hop + sound.window), sound.bands),
  );
  const loudest = Math.max(...power.flat());
  const least = 10 ** (-sound.range / 10);
  return Int16Array.from({ length: bands * frames }, (_, i) => {
    const ratio = Math.max(power[i % frames][Math.floor(i / frames)] / loudest, least);
    const level = loudest < sound.silence ? 0 : Math.fround((10 * Math.log10(ratio)) / sound.range + 1);
    const normalized = Math.fround(Math.fround(level - Math.fround(sound.mean)) / Math.fround(sound.std));
    return Math.min(32767, Math.max(-32768, rint(normalized * 2 ** sound.fraction_bits)));
  });
}

/* Where the loudest part of a recording of `length` samples begins. */
function loudestPart(samples, length) {
  const energies = new Float64Array(samples.length + 1);
  samples.forEach((x, i) => (energies[i + 1] = energies[i] + x * x));
  let best = 0;
  for (let at = 0; at + length <= samples.length; at += 64)
    if (energies[at + length] - energies[at] > energies[best + length] - energies[best]) best = at;
  return best;
}
