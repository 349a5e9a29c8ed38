// The shell: who is logged in, the list of pages, the box that goes to a topic or group, and which page is shown.
import { call, getSession, logout } from "./api.js";
import { announce, append, h, harmless } from "./dom.js";
import { address } from "./links.js";
import { failure, isAbort, View } from "./view.js";

// [first part of the address, name in the list, module; null: not in the list]
const PAGES = [
  ["", "Overview", "overview"],
  ["topics", "Topics", "topics"],
  ["groups", "Groups", "groups"],
  ["messages", "Messages", "messages"],
  ["tail", "Live tail", "tail"],
  ["trace", "Trace", "trace"],
  ["dead-letters", "Dead letters", "dead_letters"],
  ["pending", "Pending", "pending"],
  ["lite", "Lite topics", "lite"],
  ["clients", "Clients", "clients"],
  ["jobs", "Jobs", "jobs"],
  ["storage", "Storage", "storage"],
  ["migration", "Migration", "migration"],
  ["members", "Members", "members"],
  ["users", "Users and rules", "users"],
  ["settings", "Settings", "settings"],
  ["message", null, "message"],
];

// Pages of one thing, by the number of parts of the address.
const DETAILS = { topics: "topic", groups: "group", "dead-letters": "dead_letters", jobs: "job" };

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
let session = null;
let view = null;
let returnTo = null;

function routeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path
    .split("/")
    .filter(Boolean)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { path: parts, query: new URLSearchParams(query ?? "") };
}

function showNav(current) {
  nav.replaceChildren(
    h(
      "ul",
      null,
      PAGES.filter(([, name]) => name).map(([path, name]) =>
        h("li", null, h("a", { href: `#/${path}`, "aria-current": path === current ? "page" : null }, name)),
      ),
    ),
  );
}

function foldNav(isOpen) {
  nav.classList.toggle("open", isOpen);
  menu.setAttribute("aria-expanded", String(isOpen));
}

async function show() {
  const hash = location.hash;
  if (hash === "#main") return;
  const route = routeOf(hash);
  const first = route.path[0] ?? "";
  view?.close();
  const own = new View(h("div", { class: "page" }), route, session ?? {});
  view = own;
  if (session === null || (session.needsLogin && session.user === null)) {
    await showLogin(own);
    return;
  }
  const page = PAGES.find(([path]) => path === first);
  showNav(page && page[1] ? first : ({ message: "messages" }[first] ?? null));
  foldNav(false);
  try {
    if (!page) throw new Error(`there is no page ${first}`);
    const name = (route.path.length > 1 && DETAILS[first]) || page[2];
    const module = await import(`./page_${name}.js`);
    if (view !== own) return;
    main.replaceChildren(own.root);
    await module.show(own);
    if (view !== own) return;
    settle(own);
  } catch (error) {
    if (isAbort(error) || view !== own) return;
    main.replaceChildren(own.root);
    if (!own.root.firstChild) own.begin(page ? (page[1] ?? "Message") : "No such page");
    own.add(failure(error));
    settle(own);
  }
}

// Where the keyboard goes on: the field that a page asks for, or its heading.
function settle(own) {
  const wanted = own.root.querySelector("[data-first]") ?? own.root.querySelector("h1");
  if (!own.root.contains(document.activeElement)) wanted?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
  announce(document.title);
}

async function showLogin(own) {
  document.getElementById("top").hidden = true;
  nav.hidden = true;
  const module = await import("./page_login.js");
  main.replaceChildren(own.root);
  module.show(own, async () => {
    await begin();
    const there = returnTo;
    returnTo = null;
    if (there !== null && there !== location.hash) location.hash = there;
    else await show();
  });
  own.root.querySelector("[data-first]")?.focus();
}

async function begin() {
  session = await getSession();
  const isIn = !session.needsLogin || session.user !== null;
  document.getElementById("top").hidden = !isIn;
  nav.hidden = !isIn;
  document.getElementById("where").textContent = harmless([session.cluster, session.broker].filter(Boolean).join(" / "));
  const who = document.getElementById("who");
  who.replaceChildren();
  if (session.needsLogin && session.user) {
    append(who, [
      h("span", null, session.user),
      " ",
      h("button", { type: "button", class: "quiet", onclick: leave }, "Log out"),
    ]);
  }
}

async function leave() {
  try {
    await logout();
  } catch (error) {
    announce(error.message);
  }
  await begin();
  returnTo = null;
  await show();
}

// The session is over: back to the login page, and from there to where one was.
window.addEventListener("session-over", () => {
  if (session === null || session.user === null) return;
  session = { ...session, user: null, needsLogin: true };
  returnTo = location.hash;
  show();
});

// --- the box that goes to a topic or group ---

const goForm = document.getElementById("go");
const goText = document.getElementById("go-text");
let asking = 0;

async function suggest() {
  const typed = goText.value.trim();
  asking += 1;
  const own = asking;
  await new Promise((resolve) => {
    setTimeout(resolve, 200);
  });
  if (own !== asking || !typed || typed.includes("/")) return;
  const [topics, groups] = await Promise.allSettled([
    call("OverviewService/ListTopicFigures", { contains: typed, limit: 8 }),
    call("OverviewService/ListGroupFigures", { contains: typed, limit: 8 }),
  ]);
  if (own !== asking) return;
  const names = [
    ...(topics.value?.topics ?? []).map((one) => `topic/${one.topic.name}`),
    ...(groups.value?.groups ?? []).map((one) => `group/${one.group.name}`),
  ];
  document.getElementById("go-names").replaceChildren(...names.map((name) => h("option", { value: name })));
}

async function exists(name, body) {
  try {
    await call(name, body);
    return true;
  } catch {
    return false;
  }
}

async function go(typed) {
  const [kind, ...rest] = typed.split("/");
  const name = rest.join("/");
  if (kind === "topic" && name) return address(["topics", name]);
  if (kind === "group" && name) return address(["groups", name]);
  if (await exists("AdminService/GetTopic", { name: typed })) return address(["topics", typed]);
  if (await exists("AdminService/GetGroup", { name: typed })) return address(["groups", typed]);
  return address(["topics"], { contains: typed });
}

goText.addEventListener("input", suggest);
goForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  const typed = goText.value.trim();
  if (!typed) return;
  location.hash = await go(typed);
  goText.value = "";
});

menu.addEventListener("click", () => foldNav(menu.getAttribute("aria-expanded") !== "true"));
nav.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    foldNav(false);
    menu.focus();
  }
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);

try {
  await begin();
  await show();
} catch (error) {
  main.replaceChildren(
    h(
      "div",
      { class: "page" },
      h("h1", null, "Quarry"),
      failure(error, () => location.reload()),
    ),
  );
}
