// SPDX-License-Identifier: BSD-3-Clause
// Perfetto's trace processor as its site runs it: node perfetto.cjs FOLDER, which has
// engine_bundle.js and the .wasm files. Bytes of its RPC come by stdin, and go by stdout.
const fs = require("fs"), path = require("path");

const folder = process.argv[2];
const read = (name) => fs.readFileSync(path.join(folder, path.basename(String(name))));

class FileRequest {
  open(method, name) { this.name = name; }
  send() { this.response = new Uint8Array(read(this.name)).buffer; }
}

// what the bundle finds in a browser's worker, and that it is not in node
const worker = {
  self: { location: { href: "file:///" } },
  location: { href: "file:///" },
  WorkerGlobalScope: Object,
  XMLHttpRequest: FileRequest,
  fetch: async (name) => new Response(read(name), { headers: { "Content-Type": "application/wasm" } }),
  console: { ...console, log: console.error, info: console.error, debug() {} },
  process: undefined,
  importScripts() {},
  postMessage() {},
};
new Function(...Object.keys(worker), read("engine_bundle.js"))(...Object.values(worker));
const port = { postMessage: (data) => fs.writeSync(1, data) };
worker.self.onmessage({ data: port });
setImmediate(() => process.stdin.on("data", (data) => port.onmessage({ data: new Uint8Array(data) })));
