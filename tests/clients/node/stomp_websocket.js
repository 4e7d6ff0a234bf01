// Drives @stomp/stompjs over a WebSocket: sends, receives and acknowledges, and says what came as one line of JSON.
// Usage: node stomp_websocket.js URL QUEUE BYTES binary|text [USER PASSWORD] ; NODE_EXTRA_CA_CERTS has the authority for wss.
import { Client } from '@stomp/stompjs';
import { createHash } from 'node:crypto';
import WebSocket from 'ws';

Object.assign(global, { WebSocket });

const [url, queue, bytes, kind, login, passcode] = process.argv.slice(2);
const size = Number(bytes);
const body = kind === 'text' ? 'aä€'.repeat(Math.ceil(size / 6)) : new Uint8Array(size).map((_, at) => at % 251);
const digest = (data) => createHash('sha256').update(data).digest('hex');

const timer = setTimeout(() => {
  console.error('not within 50 s');
  process.exit(2);
}, 50000);

const client = new Client({
  brokerURL: url,
  connectHeaders: login ? { login, passcode } : {},
  reconnectDelay: 0,
  heartbeatIncoming: 4000,
  heartbeatOutgoing: 4000,
});

const receipt = (publish) =>
  new Promise((resolve) => {
    const id = `r${Math.random()}`;
    client.watchForReceipt(id, resolve);
    publish(id);
  });

const fail = (what) => {
  console.log(JSON.stringify({ error: what, protocol: client.webSocket?.protocol }));
  clearTimeout(timer);
  client.deactivate({ force: true });
};

client.onStompError = (frame) => fail(frame.headers.message);
client.onWebSocketError = (event) => fail(event.message ?? 'WebSocket error');

client.onConnect = async (connected) => {
  const destination = `/queue/${queue}`;
  const send = (extra, content) =>
    receipt((id) => {
      const headers = { persistent: 'true', receipt: id, ...extra };
      const what = typeof content === 'string' ? { body: content } : { binaryBody: content };
      client.publish({ destination, headers, ...what });
    });
  await Promise.all([1, 2, 3].map((number) => send({ number: String(number) }, `hello ${number}`)));
  await send({ number: 'large', 'content-type': 'application/octet-stream' }, body);
  const messages = await new Promise((resolve) => {
    const all = [];
    client.subscribe(
      destination,
      (message) => {
        const { number } = message.headers;
        all.push({ number, digest: digest(message.binaryBody), bytes: message.binaryBody.length });
        message.ack();
        if (all.length === 4) resolve(all);
      },
      { ack: 'client-individual' },
    );
  });
  const closed = new Promise((resolve) => {
    client.onWebSocketClose = (event) => resolve({ code: event.code, clean: event.wasClean });
  });
  const protocol = client.webSocket.protocol;
  await client.deactivate();
  clearTimeout(timer);
  const sent = digest(body);
  console.log(JSON.stringify({ protocol, version: connected.headers.version, messages, sent, close: await closed }));
};

client.activate();
