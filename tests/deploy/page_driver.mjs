// Calls functions of an exported page outside of a browser: node page_driver.mjs PAGE CALLS, both files; prints JSON.
import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

const text = readFileSync(process.argv[2], "utf8");
const script = (id) => text.match(new RegExp(`<script[^>]* id="${id}"[^>]*>([^]*?)</script>`))[1];
const model = JSON.parse(script("model"));
const functions = "Network, bytesOf, countGolden, fitPicture, goldenInputs, rasterize, rejects, FrontEnd";
const page = runInThisContext(`${script("library")}\n({ ${functions} })`);
const network = await page.Network.load(model);
const numbers = (base64) => {
  const { buffer } = page.bytesOf(base64);
  return model.bytes ? new Uint8Array(buffer) : new Int16Array(buffer);
};
const packed = (bytes) => Buffer.from(bytes).toString("base64");

const answers = {
  golden: () => page.countGolden(network),
  // Frames of one input; outputs, membranes and spikes of every time step.
  run: ({ frames }) => {
    const steps = network.run(frames.map(numbers));
    return {
      checksum: network.checksum(),
      steps: steps.map(({ outputs, spikes }) => ({ outputs, spikes: spikes.map(packed) })),
    };
  },
  rejects: ({ outputs, steps }) => page.rejects(model, outputs, steps),
  draw: ({ strokes }) => packed(page.rasterize(strokes, model)),
  picture: ({ rgba, width, height }) => packed(page.fitPicture(page.bytesOf(rgba), width, height, model)),
  // Samples as 16-bit integers.
  sound: ({ samples }) => {
    const whole = new Int16Array(page.bytesOf(samples).buffer);
    return Array.from(new page.FrontEnd(model).frame(Float64Array.from(whole, (x) => x / 32768)));
  },
};
const calls = JSON.parse(readFileSync(process.argv[3], "utf8"));
console.log(JSON.stringify(calls.map((call) => answers[call.what](call))));
