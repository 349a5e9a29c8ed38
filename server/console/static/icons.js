// Small pictures beside words: they say nothing that the words do not.
import { svg } from "./dom.js";

const PATHS = {
  overview: "M2 2h5v6H2zM9 2h5v4H9zM9 8h5v6H9zM2 10h5v4H2z",
  topics: "M2 4h12M2 8h12M2 12h8",
  groups: "M6 7a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM1.5 14c0-3 2-4.5 4.5-4.5s4.5 1.5 4.5 4.5M11 2.5a2.3 2.3 0 0 1 0 4.4M12.5 9.8c1.4.6 2 2 2 4.2",
  messages: "M2 3h12v8H8l-3 3v-3H2z",
  tail: "M1 8h3l2-5 4 10 2-5h3",
  trace: "M3 3h4v4H3zM9 9h4v4H9zM5 7v4h4",
  "dead-letters": "M2 4h12v9H2zM2 4l6 5 6-5M5 14l6-12",
  pending: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 4.5V8l2.5 2",
  lite: "M3 3h3v3H3zM10 3h3v3h-3zM3 10h3v3H3zM10 10h3v3h-3z",
  clients: "M2 3h12v8H2zM6 14h4M8 11v3",
  jobs: "M3 8l3 3 7-7M2 14h12",
  storage: "M2 4c0-1 3-2 6-2s6 1 6 2v8c0 1-3 2-6 2s-6-1-6-2zM2 4c0 1 3 2 6 2s6-1 6-2M2 8c0 1 3 2 6 2s6-1 6-2",
  stages: "M2 13V8h3v5M6.5 13V3h3v10M11 13V6h3v7",
  migration: "M2 5h10l-3-3M14 11H4l3 3",
  members: "M8 2v4M4 10l4-4 4 4M2 10h4v4H2zM10 10h4v4h-4z",
  users: "M4 7V5a4 4 0 0 1 8 0v2M3 7h10v7H3z",
  settings: "M2 4h7M12 4h2M2 12h2M7 12h7M9 2.5v3h3v-3zM4 10.5v3h3v-3zM2 8h12",
  search: "M7 2a5 5 0 1 0 0 10A5 5 0 0 0 7 2zM11 11l3.5 3.5",
  light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  dark: "M13.5 9.5A6 6 0 1 1 6.5 2.5a5 5 0 0 0 7 7z",
  system: "M2 3h12v8H2zM5 14h6",
  copy: "M5 5h9v9H5zM5 11H2V2h9v3",
  go: "M6 3l5 5-5 5",
  close: "M3 3l10 10M13 3L3 13",
  act: "M9 1L3 9h4l-1 6 6-8H8z",
};

export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name] ?? PATHS.go }),
  );
}
