// Who calls: name and secret of a user of the broker.
import { login } from "./api.js";
import { field, valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";

export function show(view, done) {
  view.begin("Log in");
  const said = h("div", { role: "alert" });
  const go = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h(
    "form",
    {
      class: "panel login",
      onsubmit: async (event) => {
        event.preventDefault();
        const { user, secret } = valuesOf(form);
        go.disabled = true;
        replace(said, "Working …");
        try {
          await login(user, secret);
          await done();
        } catch (error) {
          replace(said, h("p", { class: "notice bad" }, "✖ ", error.message));
        }
        go.disabled = false;
      },
    },
    h("p", { class: "lead" }, "A user of the broker with its secret. Calls of this page are signed as that user. One that is known by a certificate alone needs a secret to log in."),
    field({ name: "user", label: "User", required: true, autocomplete: "username", "data-first": true }),
    field({ name: "secret", label: "Secret", type: "password", required: true, autocomplete: "current-password" }),
    said,
    h("div", { class: "buttons" }, go),
  );
  view.add(form);
}
