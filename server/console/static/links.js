// Addresses of pages.
import { h } from "./dom.js";

const part = encodeURIComponent;

export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = given.map(([name, value]) => `${part(name)}=${part(value)}`).join("&");
  return `#/${path.map(part).join("/")}${text ? `?${text}` : ""}`;
}

export function link(path, text, query = {}, properties = {}) {
  return h("a", { href: address(path, query), ...properties }, text);
}

// Short names stay in one piece where columns are narrow.
const LONG = 20;
const named = (name) => ({ class: name.length > LONG ? "name long" : "name" });

export const topicLink = (name) => link(["topics", name], name, {}, named(name));
export const groupLink = (name) => link(["groups", name], name, {}, named(name));

// To the message at a place of a queue of a member, the broker that is asked without one.
export function messageLink(topic, queue, offset, text, member = "") {
  return link(["message"], text ?? `${queue}/${offset}`, { topic, queue, offset, member });
}
