// The shell: who is logged in, the list of pages with what they count, the search box, the theme, and which page is shown.
import { call, CallError, getSession, logout } from "./api.js";
import { announce, append, h, harmless } from "./dom.js";
import { ageText, countText, exact } from "./format.js";
import { icon } from "./icons.js";
import { applies, countOf, DETAILS, PAGES, together } from "./pages.js";
import { apply, nextTheme, setTheme, theme } from "./theme.js";
import { failure, isAbort, View } from "./view.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
let session = null;
let view = null;
let returnTo = null;
// What the list of pages knows of the broker: null as long as nobody has asked.
const known = { overview: null, members: 1, atMs: 0, isAllowed: true };
const COUNTS_OLD_MS = 20000;
const AGES_MS = 10000;

apply(theme());

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
  const there = PAGES.filter(([path, name]) => name && (path === current || applies(path, { ...known, session })));
  const groups = [...new Set(there.map((one) => one[3]))];
  const held = nav.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  nav.replaceChildren(
    ...groups.map((group) =>
      h(
        "div",
        { class: "nav-group", role: "group", "aria-label": group },
        h("p", { "aria-hidden": "true" }, group),
        h("ul", null, there.filter((one) => one[3] === group).map((one) => h("li", null, navLink(one, current)))),
      ),
    ),
  );
  if (held !== null) nav.querySelector(`a[href="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}

function navLink([path, name], current) {
  const number = Number(countOf(path, known.overview));
  return h(
    "a",
    { href: `#/${path}`, "aria-current": path === current ? "page" : null },
    icon(path || "overview"),
    h("span", null, name),
    number > 0 && h("span", { class: "nav-count", title: exact(number) }, countText(number)),
  );
}

// A page that asked for the overview anyway tells it here.
window.addEventListener("overview", ({ detail }) => {
  Object.assign(known, detail, { atMs: Date.now() });
  if (session !== null && view !== null && !nav.hidden) showNav(current());
});

async function learn() {
  if (!known.isAllowed || Date.now() - known.atMs < COUNTS_OLD_MS || document.hidden) return;
  known.atMs = Date.now();
  try {
    const { members } = await call("OverviewService/ListOverviews");
    const detail = { overview: together(members), members: members.length };
    window.dispatchEvent(new CustomEvent("overview", { detail }));
  } catch (error) {
    known.isAllowed = error.code !== "PERMISSION_DENIED";
  }
}

function current() {
  const first = view.route.path[0] ?? "";
  return first === "message" ? "messages" : first;
}

function foldNav(isOpen) {
  nav.classList.toggle("open", isOpen);
  menu.setAttribute("aria-expanded", String(isOpen));
}

// Finds the page that an address names, and how to load its module. `load` may be called only if there is such a page.
function pageOf(route) {
  const [first = "", ...more] = route.path;
  const page = PAGES.find(([path]) => path === first);
  return { page, load: () => import(`./page_${(more.length && DETAILS[first]) || page[2]}.js`) };
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
  const { page, load } = pageOf(route);
  showNav(current());
  foldNav(false);
  try {
    if (!page) throw new Error(`there is no page ${first}`);
    const module = await load().catch(notLoaded);
    if (view !== own) return;
    main.replaceChildren(own.root);
    await module.show(own);
    if (view !== own) return;
    settle(own);
    learn();
  } catch (error) {
    if (isAbort(error) || view !== own) return;
    main.replaceChildren(own.root);
    if (!own.root.firstChild) own.begin(page ? (page[1] ?? "Message") : "No such page");
    own.add(failure(error));
    settle(own);
  }
}

function notLoaded() {
  throw new CallError("UNREACHABLE", "the console's server does not answer", 0);
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
  who.replaceChildren(searchButton(), themeButton());
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

// --- the theme ---

function themeButton() {
  const now = theme();
  const next = nextTheme(now);
  return h(
    "button",
    {
      type: "button",
      class: "quiet bare theme",
      title: `Theme: ${now}`,
      "aria-label": `Theme: ${now}. Change it to ${next}`,
      onclick: ({ currentTarget }) => {
        setTheme(next);
        const button = themeButton();
        currentTarget.replaceWith(button);
        button.focus();
        announce(`Theme: ${next}`);
      },
    },
    icon(now),
  );
}

// --- the search box, which is loaded when it is first opened ---

function searchButton() {
  return h(
    "button",
    { type: "button", class: "quiet find", "aria-haspopup": "dialog", "aria-keyshortcuts": "Control+K", onclick: find },
    icon("search"),
    h("span", null, "Search or go to"),
    h("kbd", { "aria-hidden": "true" }, "Ctrl K"),
  );
}

async function find() {
  if (document.querySelector("dialog[open]") || document.getElementById("top").hidden) return;
  const { openSearch } = await import("./search.js");
  openSearch({ session, route: view.route, leave });
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && !event.shiftKey && !event.altKey) {
    event.preventDefault();
    find();
  }
});

// Times that are told as ages grow old.
setInterval(() => {
  if (document.hidden) return;
  for (const one of document.querySelectorAll("time[data-at]")) one.textContent = harmless(ageText(one.dataset.at));
  learn();
}, AGES_MS);

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
window.addEventListener("theme", () => document.querySelector(".theme")?.replaceWith(themeButton()));

try {
  // the page is loaded while the session is asked for; `show` tells what fails
  const { page, load } = pageOf(routeOf(location.hash));
  if (page) load().catch(() => {});
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
