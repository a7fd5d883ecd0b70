"use strict";
/* The network in WebAssembly. Its memory is laid out by `bsnn.deploy.formats._memory`; each call of the engine computes
   one time step. */

function bytesOf(base64) {
  const text = atob(base64);
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

class Network {
  /* Compiles the engine and fills its memory; `model` is what the page holds. */
  static async load(model) {
    const { instance } = await WebAssembly.instantiate(bytesOf(model.engine), {});
    return new Network(model, instance.exports);
  }

  constructor(model, engine) {
    const { memory, shape } = model;
    if (engine.__heap_base.value > memory.base) throw new Error("the engine's own memory reaches into the network's");
    const missing = Math.ceil((memory.size - engine.memory.buffer.byteLength) / 65536);
    if (missing > 0) engine.memory.grow(missing);
    const { buffer } = engine.memory;
    new Uint8Array(buffer).set(bytesOf(model.image), memory.base);
    this.model = model;
    this.engine = engine;
    const frame = shape[0] * shape[1] * shape[2];
    this.input = model.bytes
      ? new Uint8Array(buffer, memory.input, frame)
      : new Int16Array(buffer, memory.input, frame);
    this.outputs = new BigInt64Array(buffer, memory.outputs, model.classes.length);
    this.membranes = new Uint32Array(buffer, memory.membranes, memory.membrane_bytes / 4);
    this.records = model.layers.map(({ shape: [c, h, w] }, i) => new Uint8Array(buffer, memory.records[i], c * h * w));
  }

  /* Computes all time steps of an input, from membranes of zero. `frames` holds one frame [H, W, C], which is shown at
     every time step, or one for each. Returns, for each time step, the outputs summed so far and the spikes of each
     layer, [H, W, C]. */
  run(frames) {
    const steps = [];
    this.membranes.fill(0);
    this.outputs.fill(0n);
    for (let t = 0; t < this.model.time_steps; t++) {
      this.input.set(frames[frames.length === 1 ? 0 : t]);
      this.engine.bsnn_run(this.model.memory.call, 0);
      steps.push({ outputs: Array.from(this.outputs, Number), spikes: this.records.map((spikes) => spikes.slice()) });
    }
    return steps;
  }

  /* FNV-1a over the membranes, as golden vectors have it. */
  checksum() {
    let total = 2166136261;
    for (const word of this.membranes) total = Math.imul(total ^ word, 16777619);
    return total >>> 0;
  }
}

/* The input of each golden vector: its frames. */
function goldenInputs(model) {
  const { buffer } = bytesOf(model.golden.inputs);
  const numbers = model.bytes ? new Uint8Array(buffer) : new Int16Array(buffer);
  const size = model.shape[0] * model.shape[1] * model.shape[2];
  const number = model.golden.outputs.length;
  const frames = numbers.length / size / number;
  const frame = (i) => numbers.subarray(i * size, (i + 1) * size);
  return Array.from({ length: number }, (_, n) => Array.from({ length: frames }, (_, t) => frame(n * frames + t)));
}

/* How many golden vectors come out as the engine computed them: outputs and membranes, and of the first sounds also the
   input, from their samples. */
function countGolden(network) {
  const { golden, sound } = network.model;
  const frontEnd = sound && new FrontEnd(network.model);
  return goldenInputs(network.model).filter((frames, n) => {
    if (golden.sounds[n]) {
      const samples = Float64Array.from(new Int16Array(bytesOf(golden.sounds[n]).buffer), (x) => x / 32768);
      if (!frontEnd.frame(samples).every((x, i) => x === frames[0][i])) return false;
    }
    const last = network.run(frames).at(-1).outputs;
    return last.every((x, c) => x === golden.outputs[n][c]) && network.checksum() === golden.checksums[n];
  }).length;
}

/* Probabilities of the classes from the outputs of the first `steps` time steps. */
function sharesOf(model, outputs, steps) {
  const logits = outputs.map((x) => (x * model.output_scale) / steps);
  const largest = Math.max(...logits);
  const powers = logits.map((x) => Math.exp(x - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((x) => x / sum);
}

/* Whether the outputs of the first `steps` time steps are none of the classes, by the threshold of the model file. */
function rejects(model, outputs, steps) {
  if (model.reject_below === null) return false;
  const sum = outputs.reduce((a, b) => a + b);
  return outputs.length * Math.max(...outputs) - sum < model.reject_below * steps;
}

/* Rounds halves to even, as NumPy does. */
function rint(x) {
  const low = Math.floor(x);
  const rest = x - low;
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
}
