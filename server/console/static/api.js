// Calls of the admin port through the gateway: JSON as protobuf writes it, int64 as strings, unset = unknown.

export class CallError extends Error {
  constructor(code, message, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

const ACTS = ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"];

// When somebody last did something: what a page asks by itself keeps nobody logged in.
let actedAt = performance.now();
if (typeof window !== "undefined") {
  for (const act of ACTS)
    window.addEventListener(act, () => (actedAt = performance.now()), { capture: true, passive: true });
}

function headersOf(body) {
  return {
    ...(body === undefined ? { "X-Quarry-Console": "1" } : { "Content-Type": "application/json" }),
    "X-Quarry-Idle": String(Math.floor((performance.now() - actedAt) / 1000)),
  };
}

async function send(method, path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headersOf(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("UNREACHABLE", "the console's server does not answer", 0);
  }
  if (response.ok) return response;
  throw await refusal(response, path);
}

async function refusal(response, path) {
  let told = {};
  try {
    told = await response.json();
  } catch {
    told = {};
  }
  const error = new CallError(
    told.code ?? `HTTP ${response.status}`,
    told.message ?? `the answer was ${response.status}`,
    response.status,
  );
  if (response.status === 401 && path !== "/api/session") window.dispatchEvent(new CustomEvent("session-over"));
  return error;
}

// Who is to make the call: a member of the cluster by its name, all members (EVERY), or the broker that is asked.
export const EVERY = Symbol("every member");

function asked(path, member) {
  if (member === EVERY) return `${path}?members=all`;
  return member ? `${path}?member=${encodeURIComponent(member)}` : path;
}

// `name` is "Service/Method". Throws CallError, or AbortError once the signal says so.
export async function call(name, body = {}, signal = undefined, member = null) {
  const response = await send("POST", asked(`/api/call/${name}`, member), body, signal);
  return response.json();
}

// All answers of a call that streams.
export async function callAll(name, body = {}, signal = undefined, member = null) {
  return (await call(name, body, signal, member)).answers ?? [];
}

// The answers of a call that streams, as they come.
export async function* stream(name, body = {}, signal = undefined, member = null) {
  const response = await send("POST", asked(`/api/stream/${name}`, member), body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.trim()) continue;
      const answer = JSON.parse(line);
      if (answer.error) throw new CallError(answer.error.code, answer.error.message, 200);
      yield answer;
    }
  }
}

export async function getSession() {
  return (await send("GET", "/api/session")).json();
}

export async function login(user, secret) {
  await send("POST", "/api/session", { user, secret });
}

export async function logout() {
  await send("DELETE", "/api/session");
}

// Text as base64 of its UTF-8, as bytes fields want it.
export function base64Of(text) {
  let binary = "";
  for (const byte of new TextEncoder().encode(text)) binary += String.fromCharCode(byte);
  return btoa(binary);
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
