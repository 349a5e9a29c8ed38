// The line protocol of the client programs (see tests/e2e/README.md), for the Node.js ones.
'use strict';

const readline = require('node:readline');
const { FilterExpression } = require('rocketmq-client-nodejs');
// Where the library's own examples take constants from; its index has none of them.
const { FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js');

// The client logs to standard error only what a person has to see; its own log file is not wanted here.
const quiet = { debug() {}, info() {}, warn() {}, error() {}, close() {} };

function say(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function describe(error) {
  const code = Number.isInteger(error.code) ? error.code : null; // Node.js names codes of its own by text
  return { type: error.constructor.name, text: String(error.message), code };
}

// Options are `--name value`; a repeated name gives an array.
function options(defaults) {
  const found = { ...defaults };
  for (let i = 2; i < process.argv.length; i += 2) {
    const name = process.argv[i].replace(/^--/, '');
    const value = process.argv[i + 1];
    found[name] = Array.isArray(found[name]) ? [...found[name], value] : value;
  }
  return found;
}

// Answers every command with one line, in order, until `close` or the end of the input.
async function serve(answers) {
  for await (const text of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(text);
    if (command.command === 'close') {
      return;
    }
    try {
      say(await answers[command.command](command));
    } catch (error) {
      say({ error: describe(error) });
    }
  }
}

function subscriptions(found) {
  const type = found['filter-type'] === 'sql' ? FilterType.SQL : FilterType.TAG;
  return new Map(found.topic.map(topic => [topic, new FilterExpression(found.filter, type)]));
}

function messageLine(message) {
  return {
    message_id: message.messageId,
    topic: message.topic,
    body: message.body.toString('base64'),
    tag: message.tag || null,
    keys: [...message.keys].sort(),
    properties: Object.fromEntries(message.properties),
    message_group: message.messageGroup || null,
    lite_topic: message.liteTopic || null,
    priority: message.priority || null, // the library shows 0 where there is none
    attempt: message.deliveryAttempt,
    born_ms: message.bornTimestamp ? message.bornTimestamp.getTime() : null,
    corrupted: Boolean(message.corrupted),
    at_ms: Date.now(),
  };
}

function run(main) {
  main().then(
    () => process.exit(0),
    error => {
      console.error(error);
      process.exit(1);
    },
  );
}

// Whom to trust is told to Node.js itself, by NODE_EXTRA_CA_CERTS.
const sslEnabled = process.env.CLIENT_TLS === 'on';
const { CLIENT_USER: accessKey, CLIENT_SECRET: accessSecret } = process.env;
const sessionCredentials = accessKey === undefined ? undefined : { accessKey, accessSecret };

module.exports = { describe, messageLine, options, quiet, run, say, serve, sessionCredentials, sslEnabled, subscriptions };
