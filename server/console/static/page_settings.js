// Settings that are changed while the broker runs.
import { confirm, field, formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { badge } from "./format.js";
import { table } from "./table.js";
import { section } from "./view.js";
import { workButton } from "./work.js";

export async function show(view) {
  view.begin("Settings", {
    lead: "Settings that can be changed while the broker runs. A change takes effect at once and is kept across restarts.",
  });
  const state = { contains: "" };
  const list = section(view, "Live settings", async () => {
    const { settings } = await view.call("SettingsService/ListSettings");
    const wanted = settings.filter((one) => `${one.key} ${one.meaning}`.toLowerCase().includes(state.contains));
    return settingsTable(view, wanted, () => list.refresh());
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

function settingsTable(view, settings, refresh) {
  return table(
    "Settings",
    [
      { title: "Key", cell: (one) => h("span", { class: "code" }, one.key) },
      { title: "Value", cell: (one) => h("strong", { class: "code" }, one.value === "" ? "(empty)" : one.value) },
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
