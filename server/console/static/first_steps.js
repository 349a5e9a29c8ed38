// How one begins with this broker, where there is nothing yet.
import { h } from "./dom.js";
import { copyButton } from "./work.js";

const PRODUCER = (at) => `import rocketmq as mq

producer = mq.Producer(mq.ClientConfiguration("${at}", mq.Credentials()))
producer.startup()
message = mq.Message()
message.topic, message.body = "orders", b"one coffee"
producer.send(message)
producer.shutdown()`;

const CONSUMER = (at) => `import rocketmq as mq

at = mq.ClientConfiguration("${at}", mq.Credentials())
consumer = mq.SimpleConsumer(at, "waiters", {"orders": mq.FilterExpression()})
consumer.startup()
for each in consumer.receive(32, 15):
    print(each.body.decode())
    consumer.ack(each)
consumer.shutdown()`;

const STEPS = {
  topics: ["No topics yet", "A topic is made here, or by the first message that is sent to it. In Python:", PRODUCER, (at) => `quarry produce orders "one coffee" --endpoint ${at}`],
  groups: ["No groups yet", "A group is made here, or by the first consumer that names it. In Python:", CONSUMER, (at) => `quarry consume orders --group waiters --endpoint ${at}`],
};

// `what` is "topics" or "groups".
export async function firstSteps(view, what) {
  const [title, lead, program, command] = STEPS[what];
  let address = "127.0.0.1:8081";
  try {
    address = (await view.call("AdminService/GetBroker")).advertisedAddress || address;
  } catch (error) {
    if (error.code !== "PERMISSION_DENIED") throw error;
  }
  const [code, line] = [program(address), command(address)];
  return h(
    "div",
    { class: "first-steps" },
    h("h3", null, title),
    h("p", null, lead),
    h("div", { class: "snippet" }, h("pre", { class: "body", tabindex: "0", "aria-label": "program" }, code), copyButton(code, "Copy the program")),
    h("p", null, "Or with a command:"),
    h("div", { class: "snippet" }, h("pre", { class: "body", tabindex: "0", "aria-label": "command" }, line), copyButton(line, "Copy the command")),
  );
}
