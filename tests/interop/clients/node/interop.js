"use strict";

// The interoperability cases on grpc-js: node interop.js target [ca]

const assert = require("node:assert/strict");
const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");

const PREFIX = "/interop.Service/";
const REFUSAL = "größer als 100 %: 大";
const PATIENCE_MS = 20_000;
const LARGE_SIZE = 4 * 1024 * 1024;
const LARGE_HEADER_SIZE = 15_000;
const GZIP = 2;

const [target, ca] = process.argv.slice(2);
const credentials = ca ? grpc.credentials.createSsl(fs.readFileSync(ca)) : grpc.credentials.createInsecure();
const options = { "grpc.max_receive_message_length": 2 * LARGE_SIZE };
const client = new grpc.Client(target, credentials, options);
// grpc-js compresses by channel, not by call
const compressing = new grpc.Client(target, credentials, { ...options, "grpc.default_compression_algorithm": GZIP });

const raw = (body) => body;
const inTime = (ms = PATIENCE_MS) => ({ deadline: Date.now() + ms });

function unary(method, body, { via = client, metadata = new grpc.Metadata(), timeout = PATIENCE_MS } = {}) {
  return new Promise((resolve, reject) => {
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    via.makeUnaryRequest(PREFIX + method, raw, raw, Buffer.from(body), metadata, inTime(timeout), done);
  });
}

async function equal(method, size, via) {
  const body = Buffer.alloc(size);
  // gzip makes it some eight times smaller
  for (let index = 0; index < size; index++) body[index] = Math.imul((index >> 4) * (index >> 4), 2_654_435_761) >>> 24;
  const answer = await unary(method, body, { via });
  assert(body.equals(answer), `${answer.length} other bytes came back`);
  return `${size} bytes`;
}

async function expect(method, body, wanted) {
  assert.equal((await unary(method, body)).toString(), wanted);
}

async function refused(method, code, message) {
  const error = await unary(method, "").then(() => assert.fail("the call succeeded"), (reason) => reason);
  assert.equal(error.code, code, error.message);
  if (message !== undefined) assert.equal(error.details, message);
  return error.details;
}

async function serverStream() {
  const stream = client.makeServerStreamRequest(PREFIX + "Stream", raw, raw, Buffer.alloc(0), inTime());
  const answers = [];
  for await (const answer of stream) answers.push(answer.toString());
  assert.deepEqual(answers, Array.from({ length: 100 }, (_, number) => String(number)));
  return `${answers.length} messages`;
}

async function bidi() {
  const stream = client.makeBidiStreamRequest(PREFIX + "PingPong", raw, raw, inTime());
  const answers = stream[Symbol.asyncIterator]();
  for (let number = 0; number < 20; number++) {
    stream.write(Buffer.from(String(number)));
    assert.equal((await answers.next()).value.toString(), String(number));
  }
  stream.end();
  assert.equal((await answers.next()).value.toString(), "end");
  assert((await answers.next()).done);
  return "20 pings";
}

async function earlyEnd() {
  const stream = client.makeBidiStreamRequest(PREFIX + "PingPong", raw, raw, inTime());
  stream.write(Buffer.from("0"));
  stream.write(Buffer.from("bye"));
  const answers = [];
  for await (const answer of stream) answers.push(answer.toString());
  assert.deepEqual(answers, ["0"]);
  return "the server ended it";
}

async function cancel() {
  const stream = client.makeServerStreamRequest(PREFIX + "Park", raw, raw, Buffer.from("cancelled"), inTime());
  stream.on("error", (error) => assert.equal(error.code, grpc.status.CANCELLED));
  await new Promise((resolve) => stream.once("data", resolve));
  stream.cancel();
  await expect("Ended", "cancelled", "ended");
  return "the server saw the end";
}

async function deadline() {
  const started = performance.now();
  const error = await unary("Silent", "late", { timeout: 300 }).catch((reason) => reason);
  const took = Math.round(performance.now() - started);
  assert.equal(error.code, grpc.status.DEADLINE_EXCEEDED, String(error));
  assert(took >= 250 && took < 5000, `${took} ms`);
  await expect("Ended", "late", "ended");
  return `${took} ms`;
}

async function metadata() {
  const headers = new grpc.Metadata();
  headers.set("x-interop", "value 1");
  headers.set("x-interop-bin", Buffer.from(Uint8Array.from({ length: 256 }, (_, index) => index)));
  assert.equal((await unary("Metadata", "x-interop", { metadata: headers })).toString(), "value 1");
  return "";
}

async function largeHeader() {
  const value = "x".repeat(LARGE_HEADER_SIZE);
  const headers = new grpc.Metadata();
  headers.set("x-large", value);
  assert.equal((await unary("Metadata", "x-large", { metadata: headers })).toString(), value);
  return `${value.length} bytes`;
}

async function many() {
  const peer = await unary("Peer", "");
  for (let number = 0; number < 1000; number++) await expect("Echo", String(number), String(number));
  assert.equal((await unary("Peer", "")).toString(), peer.toString(), "not on one connection");
  return "1000 calls";
}

async function concurrent() {
  const numbers = Array.from({ length: 100 }, (_, number) => String(number));
  await Promise.all(numbers.map((number) => expect("Together", number, number)));
  return "100 calls";
}

const CASES = {
  "unary": () => equal("Echo", 1000),
  "empty": () => equal("Echo", 0),
  "server stream": serverStream,
  "bidi": bidi,
  "early end": earlyEnd,
  "cancel": cancel,
  "deadline": deadline,
  "4 MiB": () => equal("Echo", LARGE_SIZE),
  "metadata": metadata,
  "large header": largeHeader,
  "gzip": () => equal("Compressed", 1_000_000, compressing),
  "unknown": () => refused("Unknown", grpc.status.UNIMPLEMENTED),
  "error": () => refused("Refuse", grpc.status.INVALID_ARGUMENT, REFUSAL),
  "1000 calls": many,
  "100 at once": concurrent,
};

async function main() {
  for (const [name, run] of Object.entries(CASES)) {
    const [ok, detail] = await run().then((text) => [true, text], (error) => [false, String(error)]);
    console.log(JSON.stringify({ case: name, ok, detail }));
  }
  client.close();
  compressing.close();
}

main();
