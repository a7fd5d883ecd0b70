"use strict";
/* Sounds: from a file, or from the microphone, a word at a time or all the time. */

const RECORDED = 1.6; /* seconds, of which the loudest part is taken */
const LISTENING = 120; /* milliseconds from one look at the latest sound to the next */

let microphone = null;
let frontEnd = null;

/* Runs where the browser handles sound, and passes it on. */
const EAR = `registerProcessor("ear", class extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
})`;

class Microphone {
  static async open() {
    if (!navigator.mediaDevices) throw new Error("it gives a microphone only to pages from the disk or over https");
    const off = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, ...off } });
    const context = new AudioContext();
    try {
      await context.resume();
      await context.audioWorklet.addModule(`data:text/javascript,${encodeURIComponent(EAR)}`);
      return new Microphone(stream, context);
    } catch (error) {
      release(stream, context);
      throw error;
    }
  }

  constructor(stream, context) {
    this.stream = stream;
    this.context = context;
    this.pieces = []; /* of the latest sound */
    this.number = 0; /* samples in all of them */
    const ear = new AudioWorkletNode(context, "ear", {
      numberOfOutputs: 0,
      channelCount: 1,
      channelCountMode: "explicit",
    });
    ear.port.addEventListener("message", (event) => this.hear(event.data));
    ear.port.start();
    context.createMediaStreamSource(stream).connect(ear);
  }

  hear(samples) {
    this.pieces.push(samples);
    this.number += samples.length;
    while (this.number - this.pieces[0].length > RECORDED * this.context.sampleRate)
      this.number -= this.pieces.shift().length;
  }

  /* The latest seconds at the network's rate, or null if there are not so many. */
  async latest(seconds) {
    const { sampleRate } = this.context;
    const number = Math.round(seconds * sampleRate);
    if (this.number < number) return null;
    const heard = new Float32Array(this.number);
    let at = 0;
    for (const piece of this.pieces) {
      heard.set(piece, at);
      at += piece.length;
    }
    const buffer = new AudioBuffer({ length: number, sampleRate });
    buffer.copyToChannel(heard.subarray(this.number - number), 0);
    const { rate } = model.sound;
    const offline = new OfflineAudioContext(1, Math.round(seconds * rate), rate);
    const source = new AudioBufferSourceNode(offline, { buffer });
    source.connect(offline.destination);
    source.start();
    return (await offline.startRendering()).getChannelData(0);
  }

  close() {
    release(this.stream, this.context);
  }
}

function release(stream, context) {
  stream.getTracks().forEach((track) => track.stop());
  context.close();
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function giveSound(samples, replay) {
  frontEnd ??= new FrontEnd(model);
  const frame = frontEnd.frame(samples);
  const canvas = element("canvas", {});
  paintFrame(canvas, frame, model);
  give(frame, canvas, { replay });
}

/* Records a word: its loudest second. */
async function record() {
  clear();
  label("record", "Speak …");
  microphone = await Microphone.open();
  let samples = null;
  while (microphone && !samples) {
    await pause(50);
    samples = await microphone.latest(RECORDED);
  }
  quiet();
  const at = loudestPart(samples, model.sound.samples);
  giveSound(samples.subarray(at, at + model.sound.samples), true);
}

/* Begins or ends to listen. */
async function listen() {
  if (microphone) return quiet();
  label("listen", "Stop");
  microphone = await Microphone.open();
  find("listen").disabled = false;
  while (microphone) {
    const samples = await microphone.latest(model.sound.samples / model.sound.rate);
    if (samples && microphone) giveSound(samples, false);
    await pause(LISTENING);
  }
}

function label(id, text) {
  find(id).textContent = text;
  for (const button of ["record", "listen", "choose"]) find(button).disabled = true;
  find("answer").ariaLive = "off"; /* it would be read aloud without end */
}

function quiet() {
  microphone?.close();
  microphone = null;
  find("record").textContent = "Record";
  find("listen").textContent = "Listen";
  for (const id of ["record", "listen", "choose"]) find(id).disabled = false;
  find("answer").ariaLive = "polite";
  drawPaper();
}

function explain(error) {
  quiet();
  find("hint").textContent = `The browser gives no sound from a microphone: ${error.message.replace(/\.$/, "")}.`;
}

async function takeSound(file) {
  try {
    const { rate } = model.sound;
    const sound = await new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
    const channels = Array.from({ length: sound.numberOfChannels }, (_, c) => sound.getChannelData(c));
    const mean = Float64Array.from(
      channels[0],
      (_, i) => channels.reduce((sum, one) => sum + one[i], 0) / channels.length,
    );
    giveSound(mean, true);
    if (mean.length > model.sound.samples)
      find("hint").textContent =
        `Of the ${(mean.length / rate).toFixed(1)} s of “${file.name}”, the middle ${model.sound.samples / rate} s counts.`;
  } catch {
    clear(); /* what is shown would seem to be of this file */
    find("hint").textContent = `“${file.name}” is no sound that this browser can read. Try a wav file.`;
  }
}
