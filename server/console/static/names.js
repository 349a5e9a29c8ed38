// Fields that offer names of topics and groups as they are typed.
import { field } from "./dialog.js";
import { h, newId } from "./dom.js";

function suggesting(view, spec, ask) {
  const id = newId("names");
  const names = h("datalist", { id });
  const element = field({ ...spec, list: id, required: spec.required ?? true });
  let round = 0;
  const fill = async (typed) => {
    round += 1;
    const own = round;
    try {
      const found = await ask(typed);
      if (own === round) names.replaceChildren(...found.map((value) => h("option", { value })));
    } catch {
      // Who may not list names types them in full.
      names.replaceChildren();
    }
  };
  const input = element.querySelector("input");
  let timer = null;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => fill(input.value.trim()), 200);
  });
  input.addEventListener("focus", () => {
    if (!names.firstChild) fill(input.value.trim());
  });
  element.append(names);
  return element;
}

export function topicField(view, spec = {}, type = null) {
  return suggesting(view, { name: "topic", label: "Topic", ...spec }, async (contains) => {
    const { topics } = await view.call("OverviewService/ListTopicFigures", { contains, limit: type ? 200 : 20 });
    return topics.filter((one) => !type || one.topic.type === type).map((one) => one.topic.name);
  });
}

export function groupField(view, spec = {}) {
  return suggesting(view, { name: "group", label: "Group", ...spec }, async (contains) => {
    const { groups } = await view.call("OverviewService/ListGroupFigures", { contains, limit: 20 });
    return groups.map((one) => one.group.name);
  });
}
