// Figures, sizes and times for people. Each makes an element with the exact value on hover; what is not known is said
// to be unknown, and never 0.
import { h } from "./dom.js";

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const DATE_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function isKnown(value) {
  return value !== undefined && value !== null && value !== "" && !Number.isNaN(Number(value));
}

// By keyboard and on a phone, where nothing hovers, the reason shows while it has the focus.
export function unknown(why = "the broker does not know") {
  return h("span", { class: "unknown", title: why, "data-why": why, tabindex: "0" }, "unknown");
}

export function none(text = "none") {
  return h("span", { class: "none" }, text);
}

export function exact(value) {
  try {
    return BigInt(value).toLocaleString("en");
  } catch {
    return GROUPED.format(Number(value));
  }
}

function scaled(value, base, units) {
  let size = Number(value);
  let unit = 0;
  while (Math.abs(size) >= base && unit < units.length - 1) {
    size /= base;
    unit += 1;
  }
  const text = unit === 0 ? GROUPED.format(size) : size.toPrecision(3).replace(/e.*/, "");
  return `${Math.abs(size) >= 100 && unit > 0 ? Math.round(size) : text}${units[unit] ? ` ${units[unit]}` : ""}`;
}

// "1 file", "12 files"
export function counted(number, one, many = `${one}s`) {
  return `${countText(number)} ${Number(number) === 1 ? one : many}`;
}

export function countText(value) {
  return Math.abs(Number(value)) < 10000
    ? GROUPED.format(Number(value))
    : scaled(value, 1000, ["", "k", "M", "G", "T"]);
}

export function bytesText(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

// Milliseconds as "2 h 3 min", "66 ms" or "16 µs".
export function durationText(milliseconds) {
  const ms = Number(milliseconds);
  const [micro, milli] = [Number((ms * 1000).toPrecision(2)), Number(ms.toPrecision(3))];
  if (micro !== 0 && Math.abs(micro) < 1000) return `${micro} µs`;
  if (Math.abs(milli) < 1000) return `${Math.abs(milli) < 1 ? Math.round(milli) : milli} ms`;
  const seconds = Math.round(Math.abs(ms) / 1000);
  const parts = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const sign = ms < 0 ? "-" : "";
  for (const [index, [unit, size]] of parts.entries()) {
    if (seconds < size) continue;
    const next = parts[index + 1];
    const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
    return `${sign}${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${next[0]}` : ""}`;
  }
  return "0 s";
}

export function rateText(value) {
  const rate = Number(value);
  return `${rate > 0 && rate < 10 ? rate.toFixed(1) : countText(Math.round(rate))}/s`;
}

function shown(value, text, title, why) {
  return isKnown(value) ? h("span", { class: "figure", title }, text) : unknown(why);
}

export function count(value, why) {
  return shown(value, isKnown(value) && countText(value), isKnown(value) && exact(value), why);
}

export function bytes(value, why) {
  return shown(value, isKnown(value) && bytesText(value), isKnown(value) && `${exact(value)} bytes`, why);
}

export function duration(value, why) {
  return shown(value, isKnown(value) && durationText(value), isKnown(value) && `${exact(value)} ms`, why);
}

export function rate(value, why) {
  return shown(value, isKnown(value) && rateText(value), isKnown(value) && `${exact(value)} per second`, why);
}

export function percent(value, why) {
  return shown(value, isKnown(value) && `${Number(value).toFixed(1)} %`, isKnown(value) && `${value} %`, why);
}

// Records hold any 64 bits as a time: null where no calendar reaches.
function dateOf(milliseconds) {
  const date = new Date(Number(milliseconds));
  return Number.isNaN(date.getTime()) ? null : date;
}

export function timeText(milliseconds) {
  const date = dateOf(milliseconds);
  return date === null ? `${milliseconds} ms` : DATE_TIME.format(date);
}

// Local time, UTC on hover.
export function time(milliseconds, why) {
  if (!isKnown(milliseconds)) return unknown(why);
  const date = dateOf(milliseconds);
  if (date === null) return unknown("not a valid date");
  return h("time", { datetime: date.toISOString(), title: `${date.toISOString()} (UTC)` }, DATE_TIME.format(date));
}

export function ageText(milliseconds) {
  const ago = Date.now() - Number(milliseconds);
  if (Math.abs(ago) < 1000) return "just now";
  return ago >= 0 ? `${durationText(ago)} ago` : `in ${durationText(-ago)}`;
}

// How long ago, with both times on hover.
export function age(milliseconds, why) {
  if (!isKnown(milliseconds)) return unknown(why);
  const date = dateOf(milliseconds);
  if (date === null) return unknown("not a valid date");
  return h(
    "time",
    {
      class: "whole",
      "data-at": String(milliseconds),
      datetime: date.toISOString(),
      title: `${DATE_TIME.format(date)}, ${date.toISOString()} (UTC)`,
    },
    ageText(milliseconds),
  );
}

// What an <input type="datetime-local"> holds, as milliseconds; null when empty.
export function localInputMs(text) {
  const ms = text ? new Date(text).getTime() : NaN;
  return Number.isNaN(ms) ? null : ms;
}

export function localInputOf(milliseconds) {
  const date = dateOf(milliseconds);
  if (date === null) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

const MARKS = { good: "✓", warn: "▲", bad: "✖", info: "●", idle: "○" };

// A state: a sign and a word, and a colour besides.
export function badge(kind, text, title = null) {
  return h("span", { class: `badge ${kind}`, title }, h("span", { "aria-hidden": "true" }, MARKS[kind]), " ", text);
}

const TYPES = {
  NORMAL: "normal",
  FIFO: "FIFO",
  DELAY: "delay",
  TRANSACTION: "transaction",
  MIXED: "mixed",
  LITE: "lite",
  PRIORITY: "priority",
};

export function topicType(type) {
  return TYPES[String(type ?? "").replace("TOPIC_TYPE_", "")] ?? unknown();
}

export function permissionText(permission) {
  return (
    { READ: "read only", WRITE: "write only", READ_WRITE: "read and write", NONE: "neither read nor write" }[
      String(permission ?? "").replace("PERMISSION_", "")
    ] ?? "unknown"
  );
}
