// Parts of a page of one thing, one at a time. Each has an address of its own, and is made when it is first looked at.
import { announce, h } from "./dom.js";
import { address } from "./links.js";

// list: [[key, title, () => nodes], ...]; the first is there without a key in the address.
export function tabs(view, path, list) {
  const made = new Map();
  const place = h("div", { class: "page" });
  const addressOf = (key) => address(path, { tab: key === list[0][0] ? "" : key });
  const links = list.map(([key, title]) =>
    h(
      "a",
      {
        href: addressOf(key),
        onclick: (event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
          event.preventDefault();
          history.replaceState(null, "", addressOf(key));
          choose(key);
          announce(title);
        },
      },
      title,
    ),
  );
  const choose = (key) => {
    const [chosen, , make] = list.find((one) => one[0] === key) ?? list[0];
    links.forEach((one, at) => {
      if (list[at][0] === chosen) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    });
    const isNew = !made.has(chosen);
    if (isNew) made.set(chosen, [make()].flat());
    place.replaceChildren(...made.get(chosen));
    if (!isNew) for (const one of made.get(chosen)) one.refresh?.();
  };
  view.add(h("nav", { class: "page-tabs", "aria-label": "Parts of this page" }, links), place);
  choose(view.query("tab"));
}
