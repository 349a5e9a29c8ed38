// Rows and figures of several members of a cluster on one page: whose they are, and whose are missing.
import { CallError } from "./api.js";
import { h, replace } from "./dom.js";
import { unknown } from "./format.js";
import { address } from "./links.js";
import { failure, isAbort } from "./view.js";

export const isMany = (parts) => parts.length > 1;

const isAway = (part) => part.code === "UNAVAILABLE" || part.code === "DEADLINE_EXCEEDED";

// The parts that were answered. Throws what went wrong if there are none; `ignored` codes are no failure of a part.
export function answered(parts, ignored = []) {
  const there = parts.filter((one) => !one.code);
  if (there.length) return there;
  const worst = parts.find((one) => !ignored.includes(one.code)) ?? parts[0];
  throw new CallError(worst.code, worst.problem, 0);
}

// The first answers of all members, each with the rows that `pick` finds in it; a row knows its member.
export function rowsOf(parts, pick) {
  return parts.flatMap((part) =>
    part.answers.flatMap((answer) => pick(answer).map((row) => ({ ...row, member: part.member }))),
  );
}

// Who is missing on the page, in grey, and why. Parts are those of a call, or the `members` of figures.
export function missingParts(parts, ignored = []) {
  const missing = parts.filter((one) => one.code && !ignored.includes(one.code));
  return (
    missing.length > 0 &&
    h(
      "ul",
      { class: "missing-parts" },
      missing.map((one) => {
        const name = one.member ?? one.name;
        return h(
          "li",
          { class: isAway(one) ? "notice idle" : "notice warn" },
          isAway(one) ? "○ " : "▲ ",
          h("strong", null, name),
          isAway(one) ? ` does not answer: what it holds is missing here (${one.problem}).` : `: ${one.problem}`,
        );
      }),
    )
  );
}

// The column that says whose a row is; false where there is one member alone.
export function memberColumn(parts) {
  return isMany(parts) && { title: "Member", cell: (one) => h("span", { class: "member" }, one.member) };
}

// A row for each member, in grey for those that are away. `columns` have `figure: (answer) => node`.
export function memberColumns(columns, name = (part) => h("strong", null, part.member)) {
  return [
    { title: "Member", cell: (part) => [name(part), part.code && h("small", null, isAway(part) ? " away" : " refused")] },
    ...columns.map(({ figure, ...column }) => ({
      ...column,
      cell: (part) => (part.code ? unknown(part.problem) : figure(part.answers[0], part)),
    })),
  ];
}

export const isMissing = (part) => Boolean(part.code);

// Links between the parts of members of a page that shows one member at a time.
export function memberTabs(view, path, parts, query = {}) {
  const shown = view.member || view.session.broker || parts.find((one) => one.isSelf)?.member;
  return (
    isMany(parts) &&
    h(
      "nav",
      { class: "page-tabs member-tabs", "aria-label": "Members" },
      parts.map((one) =>
        h(
          "a",
          {
            href: address(path, { ...query, member: one.isSelf ? "" : one.member }),
            "aria-current": one.member === shown ? "page" : null,
            class: one.code ? "gone" : null,
            title: one.code ? one.problem : null,
          },
          one.member,
          one.code && " (away)",
        ),
      ),
    )
  );
}

// The same, for pages that ask for nothing of all members.
export async function addMemberTabs(view, path, place) {
  try {
    const tabs = memberTabs(view, path, await view.callMembers("AdminService/GetBroker"));
    if (tabs) replace(place, tabs);
  } catch (error) {
    if (!isAbort(error)) replace(place, failure(error));
  }
}

// The sum of a figure over all members that answered; undefined where one of them does not know it.
export function sumOf(parts, pick) {
  const values = parts.flatMap((part) => part.answers.map(pick));
  const isWhole = values.length > 0 && values.every((one) => one !== undefined && one !== null);
  return isWhole ? values.reduce((sum, one) => sum + Number(one), 0) : undefined;
}

// Rows that members have in the same order, merged into one list. `first` are the first rows of each member, and `ask`
// resolves to more of them: {member, rows, next}, where `next` is null at the end. `isBefore(a, b)` is their order.
export class Merged {
  constructor(first, ask, isBefore) {
    this.sources = first;
    this.ask = ask;
    this.isBefore = isBefore;
  }

  get isOver() {
    return this.sources.every((one) => !one.rows.length && one.next === null);
  }

  // The next `limit` rows of all. The page ends early where a member has found none so far, and has more to look through.
  async page(limit) {
    const page = [];
    while (page.length < limit) {
      const empty = this.sources.filter((one) => !one.rows.length && one.next !== null);
      await Promise.all(empty.map((one) => this.fill(one)));
      const heads = this.sources.filter((one) => one.rows.length);
      if (!heads.length || empty.some((one) => !one.rows.length && one.next !== null)) break;
      const first = heads.reduce((one, other) => (this.isBefore(other.rows[0], one.rows[0]) ? other : one));
      page.push(first.rows.shift());
    }
    return page;
  }

  async fill(source) {
    Object.assign(source, await this.ask(source.member, source.next));
  }
}
