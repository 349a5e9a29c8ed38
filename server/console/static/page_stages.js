// Where the time of sends and receives goes.
import { h } from "./dom.js";
import { addMemberTabs } from "./members.js";
import { SLOW_SECONDS, stagesTable } from "./stages.js";
import { section } from "./view.js";

const REFRESH_MS = 10000;

export async function show(view) {
  view.begin("Time by stage", {
    lead: `Stages of sends and receives: first since the start, then since the previous refresh. Slow: p99 above ${SLOW_SECONDS} s.`,
  });
  const members = h("div");
  view.add(members);
  addMemberTabs(view, ["stages"], members);
  const state = { before: null, last: null };
  const load = async () => {
    const overview = await view.call("OverviewService/GetOverview");
    if (state.last && state.last.atMs !== overview.atMs) state.before = state.last;
    state.last = overview;
    return stagesTable({ own: { overview } }, state);
  };
  view.add(section(view, "Stages", load, { everyMs: REFRESH_MS }));
}
