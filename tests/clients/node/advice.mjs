// What docs/howto/clients tells of JavaScript's stock clients under "What to know": each is shown by a scene, for tests/integration/test_advice_javascript.py.
// Usage: node advice.mjs SCENE PORT NAME ; says events as lines of JSON, and goes on with each line of its input.
import { createInterface } from 'node:readline';
import { Client } from '@stomp/stompjs';
import mqtt from 'mqtt';
import rhea from 'rhea';
import WebSocket from 'ws';

Object.assign(globalThis, { WebSocket });

const [scene, port, name] = process.argv.slice(2);
const say = (event, ...facts) => console.log(JSON.stringify([event, ...facts]));
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = async () => (await lines.next()).value; // the test has done something
setTimeout(() => process.exit(2), 100000).unref();

const mqttClient = (more = {}) =>
  mqtt.connectAsync(`mqtt://127.0.0.1:${port}`, {
    protocolVersion: 5, clientId: name, clean: false, properties: { sessionExpiryInterval: 600 }, ...more,
  });

const stompClient = (more = {}) => new Client({ brokerURL: `ws://127.0.0.1:${port}/ws`, ...more });

const rheaConnection = (more = {}) =>
  rhea.create_container().connect({ host: '127.0.0.1', port: Number(port), ...more });

const scenes = {
  // mqtt.js
  async mqttWaitsForNoHandler() {
    const client = await mqttClient();
    let number = 0;
    let secondBegins;
    const second = new Promise((resolve) => { secondBegins = resolve; });
    const first = new Promise((resolve) => {
      client.on('message', async () => {
        const own = (number += 1);
        say('begun', own);
        if (own === 1) await second;
        else secondBegins();
        say('ended', own);
        if (own === 1) resolve();
      });
    });
    await client.subscribeAsync(name, { qos: 1 });
    await Promise.all([1, 2].map(() => client.publishAsync(name, 'work', { qos: 1 })));
    await first;
    await client.endAsync();
  },
  async mqttAcknowledgesByDone() {
    const client = await mqttClient({ reconnectPeriod: 0 });
    client.handleMessage = (packet, done) => {
      say('came', packet.payload.toString(), packet.dup);
      told().then((line) => line === 'done' && done());
    };
    await client.subscribeAsync(name, { qos: 1 });
    client.publish(name, 'work', { qos: 1 });
    client.on('close', () => {
      say('closed');
      process.exit(0);
    });
  },
  async mqttHasWhatWaitedAtOnce() {
    const client = mqtt.connect(`mqtt://127.0.0.1:${port}`, {
      protocolVersion: 5, clientId: name, clean: false, properties: { sessionExpiryInterval: 600 },
    });
    client.on('message', (topic, payload) => {
      say('message', payload.toString());
      client.end();
    });
    client.on('connect', () => say('connected'));
  },
  async mqttComesBack() {
    const client = await mqttClient();
    say('connected');
    await told();
    client.publish(name, 'x', { qos: 1 }, () => {
      say('confirmed');
      client.end();
    });
    say('sent');
  },
  // @stomp/stompjs
  async stompComesBack() {
    const client = stompClient();
    say('delays', client.reconnectDelay, client.heartbeatIncoming, client.heartbeatOutgoing, client.heartbeatStrategy);
    client.onConnect = () => {
      say('connected');
      client.subscribe(`/queue/${name}`, (message) => {
        say('message', message.body);
        client.deactivate();
      });
    };
    client.activate();
  },
  async stompTransaction() {
    const client = stompClient();
    const bodies = [];
    client.onConnect = () => {
      client.subscribe(`/queue/${name}`, (message) => {
        bodies.push(message.body);
        if (message.body === 'end') {
          say('bodies', bodies);
          client.deactivate();
        }
      });
      const send = (body, headers = {}) => client.publish({ destination: `/queue/${name}`, body, headers });
      const [first, second] = [client.begin(), client.begin()];
      send('aborted', { transaction: first.id });
      send('committed', { transaction: second.id });
      first.abort();
      send('plain');
      second.commit();
      client.watchForReceipt('r', () => send('end'));
      client.publish({ destination: `/queue/${name}.other`, body: '', headers: { receipt: 'r' } });
    };
    client.activate();
  },
  // rhea
  async rheaAccepts(autoaccept) {
    const connection = rheaConnection({ reconnect: false });
    connection.on('message', ({ message, delivery, connection: own }) => {
      say('message', message.body);
      if (autoaccept === false && message.body === 'accepted') delivery.accept();
      if (message.body === 'last') own.close();
    });
    connection.on('receiver_open', ({ receiver }) => say('open', receiver.autoaccept));
    connection.open_receiver(autoaccept === false ? { source: `/queue/${name}`, autoaccept } : `/queue/${name}`);
  },
  async rheaComesBack() {
    const connection = rheaConnection();
    connection.on('connection_open', () => say('connected'));
    connection.on('disconnected', () => say('disconnected'));
    connection.on('sendable', ({ sender }) => say('sendable', sender.name.length > 0));
    ['accepted', 'released', 'rejected'].forEach((event) => connection.on(event, () => say(event)));
    connection.on('message', ({ message }) => {
      say('message', message.body);
      if (message.body === 'last') connection.close();
    });
    const sender = connection.open_sender(`/queue/${name}`);
    connection.open_receiver(`/queue/${name}.back`);
    await told();
    sender.send({ body: 'x', durable: true });
    say('sent');
  },
  async rheaTypes() {
    const connection = rheaConnection({ reconnect: false });
    connection.once('sendable', ({ sender }) => {
      sender.send({ body: rhea.message.data_section(Buffer.from([0, 255])), application_properties: { n: rhea.types.wrap_short(7) } });
    });
    connection.once('accepted', () => connection.close());
    connection.on('connection_close', () => say('closed'));
    connection.open_sender(`/queue/${name}`);
  },
};

const own = { rheaAcceptsByItself: () => scenes.rheaAccepts(), rheaAcceptsWhenTold: () => scenes.rheaAccepts(false) };
await { ...scenes, ...own }[scene]();
