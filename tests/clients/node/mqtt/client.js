// Drives mqtt.js through what every client test does, and says what it saw as one line of JSON.
// Usage: node client.js PORT 4|5 ROOT
import mqtt from 'mqtt';

const [port, version, root] = process.argv.slice(2);
const protocolVersion = Number(version);
const isFive = protocolVersion === 5;
const url = `mqtt://127.0.0.1:${port}`;
const seen = { qos: [] };

const timer = setTimeout(() => {
  console.error('not within 40 s', JSON.stringify(seen));
  process.exit(2);
}, 40000);

// A client whose messages can be waited for, and which never reconnects by itself.
const open = async (name, options = {}) => {
  const came = [];
  const waiting = [];
  const client = mqtt.connect(url, {
    clientId: `${root}-${name}`, protocolVersion, reconnectPeriod: 0, ...options,
  });
  client.on('message', (topic, payload, packet) => {
    const message = { ...packet, payload: payload.toString(), body: payload };
    if (waiting.length) waiting.shift()(message);
    else came.push(message);
  });
  client.take = () =>
    new Promise((resolve) => (came.length ? resolve(came.shift()) : waiting.push(resolve)));
  const connack = await new Promise((resolve, reject) => {
    client.once('connect', resolve);
    client.once('error', reject);
  });
  client.isPresent = connack.sessionPresent;
  return client;
};
const lasting = isFive ? { properties: { sessionExpiryInterval: 600 } } : {};

const sender = await open('sender');
const receiver = await open('receiver', { clean: isFive, ...lasting });
await receiver.subscribeAsync(`${root}/#`, { qos: 2 });

for (const qos of [0, 1, 2]) {
  const properties = isFive ? { userProperties: { colour: 'red' }, contentType: 'text/plain' } : {};
  await sender.publishAsync(`${root}/a`, `hello ${qos}`, { qos, properties });
  const message = await receiver.take();
  seen.qos.push(message.qos);
  seen.payload = message.payload;
  if (isFive) {
    seen.colour = message.properties.userProperties.colour;
    seen.contentType = message.properties.contentType;
  }
}
await sender.publishAsync(`${root}/large`, Buffer.alloc(300000, 'L'), { qos: 2 });
seen.largeBytes = (await receiver.take()).body.length;

await sender.publishAsync(`${root}-kept`, 'kept', { qos: 1, retain: true });
const late = await open('late');
await late.subscribeAsync([`${root}-kept`, `${root}-will`], { qos: 1 });
const kept = await late.take();
seen.retained = [kept.payload, kept.retain];

const will = { topic: `${root}-will`, payload: 'gone', qos: 1 };
const dying = await open('dying', { will });
dying.stream.destroy();
seen.will = (await late.take()).payload;

await receiver.endAsync();
for (const number of [1, 2, 3]) {
  await sender.publishAsync(`${root}/away`, `away ${number}`, { qos: number % 2 ? 1 : 2 });
}
const back = await open('receiver', { clean: false, ...lasting });
seen.sessionPresent = back.isPresent;
seen.away = [];
for (let number = 0; number < 3; number += 1) seen.away.push((await back.take()).payload);
seen.away.sort();

await Promise.all([sender, late, back].map((client) => client.endAsync()));
clearTimeout(timer);
console.log(JSON.stringify(seen));
