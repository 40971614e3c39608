// Drives Apache's gRPC client for Node.js (npm rocketmq-client-nodejs); the commands and events are those of
// grpc_client.py. --namesrv is the address of the gRPC port.
'use strict';

const readline = require('node:readline');
const rocketmq = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const AWAIT_MS = 1_000;
const REQUEST_MS = 10_000;
const WAIT_MS = 60_000;
const SILENT = { debug() {}, info() {}, warn() {}, error: (...words) => process.stderr.write(`${words.join(' ')}\n`) };
const running = new Map();

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

class Command {
  constructor(id, words) {
    this.id = id;
    this.name = words[0];
    this.stopped = false;
    this.options = {};
    for (let i = 1; i < words.length; i += 2) this.options[words[i].slice(2)] = words[i + 1];
  }

  text(name, otherwise = '') {
    return this.options[name] ?? otherwise;
  }

  number(name, otherwise) {
    return name in this.options ? Number(this.options[name]) : otherwise;
  }

  print(event, fields = {}) {
    process.stdout.write(`${JSON.stringify({ id: this.id, event, at: Date.now(), ...fields })}\n`);
  }

  async run() {
    try {
      await COMMANDS[this.name](this);
      this.print('done');
    } catch (error) {
      this.print('failed', { error: error.name, text: String(error.message), trace: error.stack });
    }
  }
}

function configuration(command) {
  const found = {
    endpoints: command.text('namesrv'), namespace: '', requestTimeout: REQUEST_MS, logger: SILENT,
    sslEnabled: false,
  };
  if (command.text('access-key')) {
    found.sessionCredentials = { accessKey: command.text('access-key'), accessSecret: command.text('secret-key') };
  }
  return found;
}

async function withClient(client, work) {
  await client.startup();
  try {
    await work(client);
  } finally {
    await client.shutdown();
  }
}

function producerOf(command) {
  const checker = {
    async check(view) {
      command.print('checked', { msgId: view.messageId });
      return TransactionResolution[command.text('checked', 'commit').toUpperCase()];
    },
  };
  const own = command.text('end') ? { checker } : {};
  return new rocketmq.Producer({ ...configuration(command), topics: [command.text('topic')], ...own });
}

// Sends --n messages; with --end commit, rollback or none as half messages.
async function produce(command) {
  await withClient(producerOf(command), async producer => {
    for (let i = 0; i < command.number('n', 1); i++) {
      const sent = await send(command, producer, message(command, i));
      command.print('sent', {
        i, msgId: sent.messageId, queueOffset: sent.offset, recallHandle: sent.recallHandle ?? '',
      });
    }
    const end = Date.now() + command.number('linger-ms', 0);
    while (Date.now() < end && !command.stopped) await sleep(20);
  });
}

async function send(command, producer, made) {
  const end = command.text('end');
  if (!end) return await producer.send(made);
  const transaction = producer.beginTransaction();
  const sent = await producer.send(made, transaction);
  if (end === 'commit') await transaction.commit();
  if (end === 'rollback') await transaction.rollback();
  return sent;
}

// One message of a series: body PREFIX-i.
function message(command, i) {
  const made = { topic: command.text('topic'), body: Buffer.from(`${command.text('body', 'body')}-${i}`) };
  if (command.text('tags')) made.tag = command.text('tags');
  if (command.text('keys')) made.keys = [ `${command.text('keys')}-${i}` ];
  if (command.text('message-group')) made.messageGroup = command.text('message-group');
  const pairs = command.text('property').split('|').filter(Boolean);
  if (pairs.length) made.properties = new Map(pairs.map(pair => pair.split(/=(.*)/s).slice(0, 2)));
  if (command.number('delay-ms', 0)) made.deliveryTimestamp = new Date(Date.now() + command.number('delay-ms', 0));
  return made;
}

async function recall(command) {
  await withClient(producerOf(command), async producer => {
    const found = await producer.recallMessage(command.text('topic'), command.text('handle'));
    command.print('recalled', { msgId: found.messageId });
  });
}

function consumerOf(command) {
  return {
    ...configuration(command), consumerGroup: command.text('group'),
    subscriptions: new Map([[ command.text('topic'), command.text('tags', '*') ]]),
  };
}

// Receives and acknowledges; the first --hold-first are not acknowledged; --change-ms changes their invisible time.
async function receive(command) {
  const consumer = new rocketmq.SimpleConsumer({ ...consumerOf(command), awaitDuration: AWAIT_MS });
  await withClient(consumer, async () => {
    command.print('started');
    const end = Date.now() + command.number('wait-ms', WAIT_MS);
    let seen = 0;
    let acknowledged = 0;
    while (acknowledged < command.number('until', Infinity) && Date.now() < end && !command.stopped) {
      for (const view of await consumer.receive(command.number('batch', 32), command.number('invisible-ms', 10_000))) {
        const holds = ++seen <= command.number('hold-first', 0);
        if (!holds) {
          await consumer.ack(view);
          acknowledged++;
        } else if (command.number('change-ms', 0)) {
          await consumer.changeInvisibleDuration(view, command.number('change-ms', 0));
        }
        command.print('message', { action: holds ? 'held' : 'acknowledged', ...fieldsOf(view) });
      }
    }
  });
}

// Consumes; the first --fail-first deliveries fail.
async function pushConsume(command) {
  let seen = 0;
  let consumed = 0;
  const messageListener = {
    consume(view) {
      const fails = ++seen <= command.number('fail-first', 0);
      command.print('message', { action: fails ? 'later' : 'consumed', ...fieldsOf(view) });
      if (!fails) consumed++;
      return fails ? rocketmq.ConsumeResult.FAILURE : rocketmq.ConsumeResult.SUCCESS;
    },
  };
  await withClient(new rocketmq.PushConsumer({ ...consumerOf(command), messageListener }), async () => {
    command.print('started');
    const end = Date.now() + command.number('wait-ms', WAIT_MS);
    while (consumed < command.number('until', Infinity) && Date.now() < end && !command.stopped) await sleep(20);
  });
}

function fieldsOf(view) {
  return {
    msgId: view.messageId, topic: view.topic, body: view.body.toString(), attempt: view.deliveryAttempt,
    tags: view.tag ?? '', keys: view.keys.join(' '), messageGroup: view.messageGroup ?? '',
    bornTimestamp: view.bornTimestamp?.getTime() ?? 0, properties: Object.fromEntries(view.properties),
  };
}

async function stop(command) {
  const target = running.get(command.text('target'));
  if (target) target.stopped = true;
}

const COMMANDS = { produce, recall, receive, 'push-consume': pushConsume, stop };

async function session() {
  const all = [];
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [ id, ...words ] = line.split('\t');
    const command = new Command(id, words);
    running.set(id, command);
    all.push(command.run());
  }
  for (const command of running.values()) command.stopped = true;
  await Promise.all(all);
  process.exit(0);
}

session();
