// Drives MQTT.js over a WebSocket: sends and receives, and says what came as one line of JSON.
// Usage: node mqtt_websocket.js URL TOPIC BYTES 4|5
import mqtt from 'mqtt';
import { createHash } from 'node:crypto';

const [url, topic, bytes, version] = process.argv.slice(2);
const bodies = [Buffer.from('hello'), Buffer.alloc(Number(bytes), 'xyz')];
const digest = (data) => createHash('sha256').update(data).digest('hex');

const timer = setTimeout(() => {
  console.error('not within 50 s');
  process.exit(2);
}, 50000);

const client = await mqtt.connectAsync(url, { protocolVersion: Number(version), reconnectPeriod: 0 });
const messages = [];
const all = new Promise((resolve) => {
  client.on('message', (_, payload) => {
    messages.push(digest(payload));
    if (messages.length === bodies.length) resolve();
  });
});
await client.subscribeAsync(topic, { qos: 1 });
await client.publishAsync(topic, bodies[0], { qos: 1 });
await client.publishAsync(topic, bodies[1], { qos: 2 });
await all;
await client.endAsync();
clearTimeout(timer);
console.log(JSON.stringify({ messages, sent: bodies.map(digest) }));
