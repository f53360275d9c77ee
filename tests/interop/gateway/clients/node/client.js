// Node's ali-ons at work: NAME_SERVER TOPIC; prints JSON lines {feature: what was seen}, which are the
// same for every broker; null is what the client has no call for.
'use strict';

const { Producer, Consumer, Message } = require('ali-ons');

const DEADLINE_MS = 90000;
const [nameSrv, topic] = process.argv.slice(2);
// it is for finding a name server by HTTP, which is not done where one is named
const httpclient = { request() { throw new Error('not asked for'); } };
const quiet = { info() {}, debug() {}, warn() {}, error() {} };
const large = 'c'.repeat(6000);
const tell = (what, value) => console.log(JSON.stringify({ [what]: value }).replaceAll(large, 'large'));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function wait(condition) {
  const end = Date.now() + DEADLINE_MS;
  while (!condition() && Date.now() < end) await sleep(20);
  return condition();
}

// A push consumer that runs until it is closed; `rows` is what came.
class Received {
  constructor(group, tags, more) {
    this.rows = [];
    this.consumer = new Consumer({
      httpclient, nameSrv, consumerGroup: `${topic}-${group}`,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', logger: quiet, ...more,
    });
    this.consumer.on('error', () => {}); // of a handler that fails on purpose
    this.consumer.subscribe(topic, tags, async (message) => {
      const body = message.body.toString();
      this.rows.push([body, message.tags, message.keys, message.reconsumeTimes]);
      if (body === 'fail' && !message.reconsumeTimes && group === 'push') throw new Error('again');
    });
  }

  get bodies() {
    return this.rows.map((row) => row[0]);
  }

  async close() {
    await this.consumer.close();
    return this.rows.sort((a, b) => (a[0] < b[0] ? -1 : 1));
  }
}

async function main() {
  const producer = new Producer({ httpclient, nameSrv, producerGroup: 'node', logger: quiet });
  await producer.ready();
  const made = (body, tags = 'A') => {
    const message = new Message(topic, tags, body);
    message.keys = [`key-${body.slice(0, 8)}`];
    return message;
  };
  const wanted = [large, 'fail', 'late'];
  const sent = [];
  for (let n = 0; n < 8; n++) {
    sent.push((await producer.send(made(`m${n}`, 'AB'[n % 2]))).sendStatus);
    wanted.push(`m${n}`);
  }
  tell('send', sent);
  tell('compressed', (await producer.send(made(large))).sendStatus);
  await producer.send(made('fail'));
  const late = made('late');
  late.delayTimeLevel = 1;
  tell('delay level', (await producer.send(late)).sendStatus);
  const ordered = ['o0', 'o1', 'o2', 'o3'];
  const offsets = [];
  for (const body of ordered) {
    const message = made(body);
    message.shardingKey = 'one';
    offsets.push((await producer.send(message)).queueOffset);
    wanted.push(body);
  }
  tell('in order', offsets.map((offset) => offset - offsets[0]));

  const everything = new Received('push', '*');
  await wait(() => wanted.every((body) => everything.bodies.includes(body)));
  await wait(() => everything.rows.some((row) => row[0] === 'fail' && row[3] === 1));
  const rows = await everything.close();
  tell('redelivery', rows.filter((row) => row[0] === 'fail').map((row) => row[3]).sort());
  tell('push', rows.filter((row) => row[0] !== 'fail'));
  const tagged = new Received('tagged', 'B');
  await wait(() => tagged.rows.length >= 4);
  tell('tags', (await tagged.close()).map((row) => row[0]));
  const everyone = new Received('everyone', '*', { messageModel: 'BROADCASTING' });
  await wait(() => wanted.every((body) => everyone.bodies.includes(body)));
  tell('broadcasting', [...new Set((await everyone.close()).map((row) => row[0]))]);
  await producer.close();
  for (const feature of ['asynchronous', 'one-way', 'batch', 'selector', 'timed', 'transaction',
    'request-reply', 'push in order', 'pull', 'lite pull, subscribed', 'SQL92', 'by key', 'by unique key',
    'by id', 'trace']) {
    tell(feature, null);
  }
  tell('end', true);
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
