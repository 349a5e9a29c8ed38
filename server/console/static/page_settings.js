// Settings that are changed while the broker runs.
import { confirm, field, formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { badge } from "./format.js";
import { addMemberTabs, missingParts } from "./members.js";
import { table } from "./table.js";
import { section } from "./view.js";
import { workButton } from "./work.js";

export async function show(view) {
  view.begin("Settings", {
    lead: "Settings that can be changed while the broker runs. A change takes effect at once and is kept across restarts.",
  });
  const members = h("div");
  view.add(members);
  addMemberTabs(view, ["settings"], members);
  const state = { contains: "" };
  const list = section(view, "Live settings", async () => {
    const parts = await view.callMembers("SettingsService/ListSettings");
    const settings = (await ownOf(view, parts)).map((one) => ({ ...one, others: othersOf(view, parts, one) }));
    const wanted = settings.filter((one) => `${one.key} ${one.meaning}`.toLowerCase().includes(state.contains));
    return [missingParts(parts), settingsTable(view, wanted, () => list.refresh())];
  });
  view.add(
    h(
      "div",
      {
        class: "panel filters",
        role: "search",
        oninput: (event) => {
          state.contains = event.target.value.trim().toLowerCase();
          list.refresh();
        },
      },
      h(
        "div",
        { class: "grow" },
        field({
          name: "contains",
          label: "Filter",
          type: "search",
          "data-first": true,
          placeholder: "part of the key or of its meaning",
        }),
      ),
    ),
    list,
  );
}

const isShown = (view, part) => (view.member ? part.member === view.member : part.isSelf);

// The settings of the member whose page it is.
async function ownOf(view, parts) {
  const own = parts.find((one) => isShown(view, one));
  if (own && !own.code) return own.answers[0].settings;
  return (await view.call("SettingsService/ListSettings")).settings;
}

// The members that have another value.
function othersOf(view, parts, setting) {
  return parts
    .filter((part) => !part.code && !isShown(view, part))
    .map((part) => [part.member, part.answers[0].settings.find((one) => one.key === setting.key)?.value])
    .filter(([, value]) => value !== undefined && value !== setting.value);
}

function settingsTable(view, settings, refresh) {
  return table(
    "Settings",
    [
      { title: "Key", cell: (one) => h("span", { class: "code" }, one.key) },
      { title: "Value", cell: (one) => [
        h("strong", { class: "code" }, one.value === "" ? "(empty)" : one.value),
        one.others.map(([member, value]) => h("div", null, badge("warn", `${member}: ${value || "(empty)"}`))),
      ] },
      { title: "From", cell: (one) => (one.source === "live" ? badge("info", "changed live") : one.source) },
      {
        title: "Started with",
        cell: (one) => h("span", { class: "mono" }, one.configured === "" ? "(empty)" : one.configured),
      },
      { title: "Meaning", kind: "wide", cell: (one) => one.meaning },
      {
        title: "Change",
        kind: "act",
        cell: (one) => [
          workButton("Change", () => change(view, one, refresh), { className: "quiet" }),
          one.source === "live" && workButton("Reset", () => reset(view, one, refresh), { className: "quiet" }),
        ],
      },
    ],
    settings,
    { empty: "No matching settings." },
  );
}

async function change(view, setting, refresh) {
  const done = await formDialog({
    title: `Change ${setting.key}`,
    lead: setting.meaning,
    label: "Set",
    fields: [
      {
        name: "value",
        label: "Value",
        value: setting.value,
        hint: `the broker was started with ${setting.configured || "nothing"}`,
      },
    ],
    act: ({ value }) => view.call("SettingsService/SetSetting", { key: setting.key, value: value.trim() }),
  });
  if (!done) return null;
  refresh();
  return `set to ${done.value}`;
}

async function reset(view, setting, refresh) {
  const done = await confirm({
    title: `Reset ${setting.key}?`,
    label: "Reset",
    body: [
      "From ",
      h("strong", { class: "mono" }, setting.value),
      " back to ",
      h("strong", { class: "mono" }, setting.configured || "(empty)"),
      ".",
    ],
    act: () => view.call("SettingsService/ResetSetting", { key: setting.key }),
  });
  if (!done) return null;
  refresh();
  return "reset";
}
