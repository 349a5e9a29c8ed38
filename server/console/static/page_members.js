// Members of the cluster: who takes new messages, who is gone.
import { confirm } from "./dialog.js";
import { h } from "./dom.js";
import { badge, duration, isKnown, unknown } from "./format.js";
import { table } from "./table.js";
import { section } from "./view.js";
import { workButton } from "./work.js";

const REFRESH_MS = 5000;

export async function show(view) {
  view.begin("Members", { lead: "A draining member takes no new messages; those that it has can still be received." });
  let isAlone = null;
  const list = section(
    view,
    "Members",
    async () => {
      if (isAlone === null) {
        const overviews = await view.call("OverviewService/ListOverviews");
        isAlone = overviews.members.some((one) => one.isSelf && one.state === "alone");
      }
      if (isAlone) return h("p", { class: "notice idle" }, "○ This broker is alone: it is no member of a cluster.");
      const { members } = await view.call("MembersService/ListMembers");
      return membersTable(view, members, () => list.refresh());
    },
    { everyMs: REFRESH_MS },
  );
  view.add(list);
}

function membersTable(view, members, refresh) {
  return table(
    "Members",
    [
      { title: "Member", cell: (one) => [h("strong", null, one.name), one.isSelf && h("small", null, " (this one)")] },
      {
        title: "State",
        cell: (one) => badge(one.state === "active" ? "good" : "warn", one.state),
      },
      {
        title: "Reachable",
        cell: (one) =>
          one.isReachable ? badge("good", "yes") : [badge("bad", "no"), one.problem && h("small", null, " ", one.problem)],
      },
      {
        title: "Last contact",
        cell: (one) =>
          one.isSelf
            ? h("span", { class: "none" }, "it answers")
            : isKnown(one.silentMs)
              ? [duration(one.silentMs), " ago"]
              : unknown("no contact since the start"),
      },
      { title: "Version", cell: (one) => one.version || unknown() },
      {
        title: "Address for clients",
        kind: "wide",
        cell: (one) => [addressText(one.address), one.tlsAddress && [h("br"), "TLS: ", addressText(one.tlsAddress)]],
      },
      { title: "Admin", kind: "wide", cell: (one) => addressText(one.adminAddress) },
      {
        title: "Message groups",
        cell: (one) => (one.isWaitedFor ? badge("warn", "wait for its word") : "do not wait for it"),
      },
      { title: "Do", kind: "act", cell: (one) => actions(view, one, refresh) },
    ],
    members,
    { empty: "No members." },
  );
}

const addressText = (address) => (address ? h("span", { class: "address" }, address) : unknown());

function actions(view, member, refresh) {
  const step = (label, call, title, body, until, danger = false) =>
    workButton(
      label,
      async (tell) => {
        const done = await confirm({
          title,
          body,
          label,
          danger,
          mustType: label === "Remove" ? member.name : null,
          act: () => view.call(call, { name: member.name }),
        });
        if (!done) return null;
        tell("waiting until done …");
        const text = await until();
        refresh();
        return text;
      },
      { className: danger ? "quiet danger" : "quiet" },
    );
  return [
    member.state === "draining"
      ? step(
          "Activate",
          "MembersService/ActivateMember",
          `Activate ${member.name}?`,
          "It accepts new messages again.",
          () => becomes(view, member.name, "active"),
        )
      : step(
          "Drain",
          "MembersService/DrainMember",
          `Drain ${member.name}?`,
          "It accepts no new messages until it is activated: producers use the other members.",
          () => becomes(view, member.name, "draining"),
          true,
        ),
    !member.isSelf &&
      !member.isReachable &&
      step(
        "Remove",
        "MembersService/RemoveMember",
        `Remove ${member.name}?`,
        "Only for a member that is gone for good: all members forget it.",
        async () => "removed",
        true,
      ),
  ];
}

async function becomes(view, name, state) {
  for (let look = 0; look < 20; look += 1) {
    const { members } = await view.call("MembersService/ListMembers");
    if (members.find((one) => one.name === name)?.state === state) return `it is ${state}`;
    await new Promise((resolve) => {
      setTimeout(resolve, 500);
    });
  }
  return `it is not ${state} yet; the list shows when it is`;
}
