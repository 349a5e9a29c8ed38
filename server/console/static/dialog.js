// Dialogs on <dialog>, which keeps the keyboard inside and ends with Escape.
import { CallError } from "./api.js";
import { h, newId, replace } from "./dom.js";
import { failure } from "./view.js";

export function open(title, body, buttons, { wide = false } = {}) {
  const id = newId("dialog");
  const element = h(
    "dialog",
    { "aria-labelledby": id, class: wide ? "wide" : null },
    h("h2", { id }, title),
    body,
    buttons && h("div", { class: "buttons" }, buttons),
  );
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  return element;
}

// Asks before something is done. `mustType` is a name that has to be typed; `act` is awaited with the dialog open, so
// that its error is read where the question was. Resolves to what `act` returned, or to null when nothing was done.
export function confirm({ title, body, label, danger = false, mustType = null, act }) {
  return new Promise((resolve) => {
    const said = h("div", { role: "alert" });
    const typed = mustType === null ? null : h("input", { name: "confirm", spellcheck: "false", autocomplete: "off" });
    const go = h(
      "button",
      { type: "submit", class: danger ? "danger" : "primary", disabled: mustType !== null },
      label,
    );
    const cancel = h("button", { type: "button", onclick: () => element.close() }, "Cancel");
    typed?.addEventListener("input", () => {
      go.disabled = typed.value !== mustType;
    });
    let result = null;
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: async (event) => {
          event.preventDefault();
          if (go.disabled) return;
          go.disabled = true;
          replace(said, h("p", { class: "loading" }, "Working …"));
          try {
            result = (await act?.()) ?? true;
            element.close();
          } catch (error) {
            replace(said, failure(error));
            go.disabled = false;
          }
        },
      },
      body && h("div", { class: "dialog-body" }, body),
      typed &&
        h(
          "label",
          { class: "field" },
          h("span", null, "Type ", h("strong", { class: "mono" }, mustType), " to confirm"),
          typed,
        ),
      said,
      h("div", { class: "buttons" }, cancel, go),
    );
    const element = open(title, form, null);
    element.addEventListener("close", () => resolve(result));
  });
}

// A field of a form: {name, label, type, value, options: [[value, text]], hint, required, ...other attributes}
export function field({ name, label, type = "text", value = "", options = null, hint = null, ...rest }) {
  const hintId = hint && newId("hint");
  const shared = { name, "aria-describedby": hintId, ...rest };
  let control;
  if (options) {
    control = h(
      "select",
      shared,
      options.map(([key, text]) => h("option", { value: key }, text)),
    );
    if (options.some(([key]) => key === String(value))) control.value = String(value);
  } else if (type === "textarea") {
    control = h("textarea", { rows: "5", spellcheck: "false", ...shared }, value);
  } else if (type === "checkbox") {
    control = h("input", { type, ...shared });
    control.checked = Boolean(value);
    return h(
      "label",
      { class: "field check" },
      control,
      h("span", null, label),
      hint && h("small", { id: hintId }, hint),
    );
  } else {
    control = h("input", {
      type,
      spellcheck: "false",
      autocomplete: "off",
      step: type === "datetime-local" ? "1" : null,
      ...shared,
      value,
    });
  }
  return h("label", { class: "field" }, h("span", null, label), control, hint && h("small", { id: hintId }, hint));
}

// What a form holds: texts, and booleans of its boxes.
export function valuesOf(form) {
  const values = {};
  for (const control of form.elements) {
    if (control.name) values[control.name] = control.type === "checkbox" ? control.checked : control.value;
  }
  return values;
}

// A dialog with fields. `act(values)` may throw; its error is shown with the fields as they are.
export function formDialog({ title, lead = null, fields, label, act, wide = false }) {
  return new Promise((resolve) => {
    const said = h("div", { role: "alert" });
    const go = h("button", { type: "submit", class: "primary" }, label);
    let result = null;
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: async (event) => {
          event.preventDefault();
          go.disabled = true;
          replace(said, h("p", { class: "loading" }, "Working …"));
          try {
            result = (await act(valuesOf(form))) ?? true;
            element.close();
          } catch (error) {
            replace(said, failure(error));
          }
          go.disabled = false;
        },
      },
      lead && h("p", { class: "lead" }, lead),
      h(
        "div",
        { class: "fields" },
        fields.map((one) => (one instanceof Node ? one : field(one))),
      ),
      said,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => element.close() }, "Cancel"), go),
    );
    const element = open(title, form, null, { wide });
    element.addEventListener("close", () => resolve(result));
  });
}

// A value that has to be right before a call is made: thrown where the form shows it.
export function wrong(message) {
  return new CallError("CHECK THE FORM", message, 0);
}

// "a = b" lines as an object.
export function pairsOf(text) {
  const pairs = {};
  for (const line of text
    .split("\n")
    .map((one) => one.trim())
    .filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw wrong(`"${line}" is not in the form name=value`);
    pairs[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return pairs;
}
