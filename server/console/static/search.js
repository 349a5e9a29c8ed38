// One box for topics, groups, message ids, keys, pages and actions: opened by Ctrl-K or its button.
import { call } from "./api.js";
import { announce, h, newId } from "./dom.js";
import { icon } from "./icons.js";
import { address } from "./links.js";
import { PAGES } from "./pages.js";
import { setTheme } from "./theme.js";

const TYPING_MS = 150;
const NAMES_MAX = 6;
const MESSAGE_ID = /^[0-9A-Fa-f]{16,64}$/;

// A result is {kind, text, icon, to: address} or has `run` in place of `to`.
export function openSearch({ session, route, leave }) {
  const [listId, hintId] = [newId("found"), newId("hint")];
  const input = h("input", {
    type: "search",
    role: "combobox",
    "aria-label": "Search topics, groups, messages, pages and actions",
    "aria-controls": listId,
    "aria-describedby": hintId,
    "aria-expanded": "true",
    "aria-autocomplete": "list",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "Topic, group, message id, key, page or action",
  });
  const list = h("div", { id: listId, role: "listbox", "aria-label": "Results", class: "found" });
  const hint = h("p", { id: hintId, class: "note" }, "Arrow keys choose, Enter opens, Escape closes.");
  const element = h("dialog", { class: "search", "aria-label": "Search" }, input, list, hint);
  let [results, at, round, timer] = [[], 0, 0, null];

  const mark = (to) => {
    at = results.length ? (to + results.length) % results.length : 0;
    [...list.querySelectorAll("[role=option]")].forEach((one, index) => {
      one.setAttribute("aria-selected", String(index === at));
      if (index !== at) return;
      input.setAttribute("aria-activedescendant", one.id);
      one.scrollIntoView({ block: "nearest" });
    });
  };
  const take = (one) => {
    element.close();
    if (one.run) one.run();
    else location.hash = one.to;
  };
  const draw = (found) => {
    results = found;
    const kinds = [...new Set(found.map((one) => one.kind))];
    results = kinds.flatMap((kind) => found.filter((one) => one.kind === kind));
    list.replaceChildren(
      ...kinds.map((kind) =>
        h(
          "div",
          { role: "group", "aria-label": kind },
          h("p", { "aria-hidden": "true" }, kind),
          results.filter((one) => one.kind === kind).map((one) => option(one, take)),
        ),
      ),
    );
    if (!results.length) list.append(h("p", { class: "empty" }, "Nothing is called so."));
    mark(0);
  };
  const look = async () => {
    const typed = input.value.trim();
    round += 1;
    const own = round;
    const fixed = fixedResults(typed, session, route, leave);
    draw([...fixed.first, ...fixed.last]);
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const named = await namedResults(typed);
      if (own !== round || !element.open) return;
      draw([...named, ...fixed.first, ...fixed.last]);
      announce(`${results.length} results`);
    }, TYPING_MS);
  };
  input.addEventListener("input", look);
  input.addEventListener("keydown", (event) => {
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      mark(to);
    } else if (event.key === "Enter" && results[at]) {
      event.preventDefault();
      take(results[at]);
    }
  });
  element.addEventListener("click", (event) => event.target === element && element.close());
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  look();
}

function option(one, take) {
  return h(
    "div",
    { role: "option", id: newId("result"), "aria-selected": "false", onclick: () => take(one) },
    icon(one.icon),
    h("span", null, one.text),
  );
}

const has = (text, typed) => text.toLowerCase().includes(typed.toLowerCase());

// What needs no call.
function fixedResults(typed, session, route, leave) {
  const [place, name] = route.path;
  const topic = place === "topics" ? name : route.query.get("topic");
  const first = [];
  if (MESSAGE_ID.test(typed))
    first.push({ kind: "Messages", icon: "messages", text: `Open the message ${typed}`, to: address(["message"], { id: typed }) });
  const where = topic ? ` in ${topic}` : "";
  const keys = typed
    ? [
        { icon: "messages", text: `Messages with the key ${typed}${where}`, to: address(["messages"], { topic, how: "key", key: typed }) },
        { icon: "trace", text: `What became of the key ${typed}${where}`, to: address(["trace"], { topic, key: typed }) },
      ]
    : [];
  const actions = [
    topic && { text: `Send a test message to ${topic}`, to: address(["topics", topic], { tab: "send" }) },
    topic && { text: `Messages of ${topic}`, to: address(["messages"], { topic }) },
    place === "groups" && name && { text: `Reset offsets of ${name}`, to: address(["groups", name], { tab: "reset" }) },
    { text: "Create a topic", to: address(["topics"], { do: "create" }) },
    { text: "Create a group", to: address(["groups"], { do: "create" }) },
    { text: "Verify the store", to: address(["jobs"]) },
    ...["light", "dark", "system"].map((one) => ({ text: `Theme: ${one}`, run: () => choose(one) })),
    session.user && { text: "Log out", run: leave },
  ].filter(Boolean);
  const pages = PAGES.filter((one) => one[1] && has(one[1], typed));
  return {
    first,
    last: [
      ...pages.map(([path, text]) => ({ kind: "Pages", icon: path || "overview", text, to: `#/${path}` })),
      ...actions.filter((one) => has(one.text, typed)).map((one) => ({ kind: "Actions", icon: "act", ...one })),
      ...keys.map((one) => ({ kind: "Messages by key", ...one })),
    ],
  };
}

function choose(one) {
  setTheme(one);
  window.dispatchEvent(new CustomEvent("theme"));
}

// The very name comes first, then names that begin so; the broker's own topics come last.
function rank(name, typed) {
  if (name === typed) return 3;
  if (name.toLowerCase().startsWith(typed.toLowerCase())) return 2;
  return name.startsWith("%") ? 0 : 1;
}

// Topics and groups by a part of their name.
async function namedResults(typed) {
  if (!typed) return [];
  const ask = { contains: typed, limit: NAMES_MAX };
  const [topics, groups] = await Promise.allSettled([
    call("OverviewService/ListTopicFigures", ask),
    call("OverviewService/ListGroupFigures", ask),
  ]);
  const found = [
    ...(topics.value?.topics ?? []).map((one) => ({ kind: "Topics", icon: "topics", name: one.topic.name, path: "topics" })),
    ...(groups.value?.groups ?? []).map((one) => ({ kind: "Groups", icon: "groups", name: one.group.name, path: "groups" })),
  ];
  return found
    .sort((one, other) => rank(other.name, typed) - rank(one.name, typed))
    .map(({ name, path, ...one }) => ({ ...one, text: name, to: address([path, name]) }));
}
