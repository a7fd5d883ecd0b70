"use strict";
/* From 16-bit samples to the network's integers: the front end that docs/model-file.md defines ("Sounds"), with the
   tables of `bsnn.data.front_end`. All numbers are whole. Those that would exceed 2^53, the limit of exact floats, are
   split. */

/* 16-bit samples of a sound between -1 and 1 that is `length` long: zeros at the end of a shorter one, the middle of a
   longer one. */
function fitSound(samples, length) {
  const fitted = new Int16Array(length);
  const start = Math.max(0, Math.floor((samples.length - length) / 2));
  samples.subarray(start, start + length).forEach((x, i) => {
    fitted[i] = Math.min(32767, Math.max(-32768, rint(x * 32768)));
  });
  return fitted;
}

class FrontEnd {
  /* `sound` holds the tables; `shape` is that of the network's input. */
  constructor({ sound, shape }) {
    const { cosines, window } = sound;
    const quarter = window / 4;
    const fold = (n) => (n <= 2 * quarter ? n : window - n); /* a period is symmetric */
    const cosine = (n) => (fold(n) <= quarter ? cosines[fold(n)] : -cosines[2 * quarter - fold(n)]);
    const period = Float64Array.from({ length: window }, (_, n) => cosine(n));
    const sine = Float64Array.from(period, (_, n) => period[(n + 3 * quarter) % window]);
    /* Cosines and sines, each as an upper part and 15 lower bits. */
    this.parts = [period, sine].flatMap((wave) => {
      const upper = wave.map((x) => Math.floor(x / 32768));
      return [upper, wave.map((x, n) => x - upper[n] * 32768)];
    });
    this.hann = period.map((x) => 2 ** 30 - x);
    const bits = Math.log2(window / 2);
    this.order = Array.from({ length: window / 2 }, (_, k) => {
      let place = 0;
      for (let bit = 0; bit < bits; bit++) place |= ((k >> bit) & 1) << (bits - 1 - bit);
      return place;
    });
    this.sound = sound;
    [, this.bands, this.frames] = shape;
  }

  /* round_shift(a · cosine + b · sine, 30) at place n; a and b have at most 31 bits. */
  turn(a, b, n) {
    const [cosineHigh, cosineLow, sineHigh, sineLow] = this.parts;
    const low = Math.floor((a * cosineLow[n] + b * sineLow[n] + 2 ** 29) / 32768);
    return Math.floor((a * cosineHigh[n] + b * sineHigh[n] + low) / 32768);
  }

  /* The Fourier transform in place: each product is rounded, no sum is. Frequency k comes to lie at `order[k]`. */
  transform(re, im) {
    for (let half = re.length / 2; half >= 1; half /= 2)
      for (let begin = 0; begin < re.length; begin += 2 * half)
        for (let i = 0, n = 0; i < half; i++, n += re.length / half) {
          const a = begin + i;
          const b = a + half;
          const x = re[a] - re[b];
          const y = im[a] - im[b];
          re[a] += re[b];
          im[a] += im[b];
          re[b] = this.turn(x, y, n);
          im[b] = this.turn(y, -x, n);
        }
  }

  /* Four times the squared spectrum of a frame, without its last 18 bits, at all frequencies below the highest. */
  power(frame) {
    const half = frame.length / 2;
    const re = Float64Array.from({ length: half }, (_, i) => frame[2 * i]);
    const im = Float64Array.from({ length: half }, (_, i) => frame[2 * i + 1]);
    this.transform(re, im);
    return Float64Array.from(this.order, (a, k) => {
      const b = this.order[(half - k) % half];
      const x = im[a] + im[b];
      const y = re[b] - re[a];
      const real = re[a] + re[b] + this.turn(x, y, k);
      const imaginary = im[a] - im[b] + this.turn(y, -x, k);
      /* Squares of numbers 2^16 · high + low. */
      const [rh, ih] = [Math.floor(real / 65536), Math.floor(imaginary / 65536)];
      const [rl, il] = [real - rh * 65536, imaginary - ih * 65536];
      const rest = 2 * (rh * rl + ih * il) * 65536 + rl * rl + il * il;
      return (rh * rh + ih * ih) * 16384 + Math.floor(rest / 2 ** 18);
    });
  }

  /* The level of each band of a frame of samples; 0 is nothing. */
  levels(frame) {
    const { window, shares, edges, gains } = this.sound;
    const peak = frame.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    if (!peak) return gains.map(() => 0);
    const scale = 15 - (peak > 1 ? (peak - 1).toString(2).length : 0);
    const unit = 2 ** (16 + Math.log2(window) - scale);
    const power = this.power(frame.map((x, n) => Math.floor((x * this.hann[n] + unit / 2) / unit)));
    return gains.map((gain, band) => {
      let [high, low] = [0, 0]; /* of the energy, 24 bits apart */
      for (let k = edges[band]; k < edges[band + 2]; k++) {
        const share = k < edges[band + 1] ? shares[k] : 32768 - shares[k];
        const upper = Math.floor(power[k] / 2 ** 24);
        high += upper * share;
        low += (power[k] - upper * 2 ** 24) * share;
      }
      const energy = (BigInt(high) << 24n) + BigInt(low);
      return energy ? Math.min(65535, Math.max(0, logarithm(energy) + gain - 2048 * scale)) : 0;
    });
  }

  /* The network's frame [bands, frames] of a sound between -1 and 1. */
  frame(sound) {
    const { samples, window, hop, range, silent_below: silence, offset, multiplier } = this.sound;
    const padded = new Float64Array(samples + window);
    padded.set(fitSound(sound, samples), window / 2);
    const levels = Array.from({ length: this.frames }, (_, t) =>
      this.levels(padded.subarray(t * hop, t * hop + window)),
    );
    const loudest = Math.max(...levels.flat());
    return Int16Array.from({ length: this.bands * this.frames }, (_, i) => {
      const level = levels[i % this.frames][Math.floor(i / this.frames)];
      const below = level && loudest >= silence ? Math.min(loudest - level, range) : range;
      return Math.min(32767, Math.max(-32768, Math.floor((offset - below * multiplier + 32768) / 65536)));
    });
  }
}

/* The logarithm of a positive number in 1/1024 of a factor of 2, rounded down: one bit for each squaring. */
function logarithm(energy) {
  const length = energy.toString(2).length;
  let rest = length > 32 ? energy >> BigInt(length - 32) : energy << BigInt(32 - length);
  let level = length - 1;
  for (let i = 0; i < 10; i++) {
    rest = (rest * rest) >> 31n;
    const above = rest >> 32n;
    rest >>= above;
    level = 2 * level + Number(above);
  }
  return level;
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
