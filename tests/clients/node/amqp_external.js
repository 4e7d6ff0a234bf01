// Logs in with rhea by SASL EXTERNAL over TLS, and says what came of it as one line of JSON.
// Usage: node amqp_external.js PORT AUTHORITY CERTIFICATE KEY
import { readFileSync } from 'node:fs';
import rhea from 'rhea';

const [port, ca, cert, key] = process.argv.slice(2);
const container = rhea.create_container();

const timer = setTimeout(() => {
  console.error('not within 50 s');
  process.exit(2);
}, 50000);
let isTold = false;
const tell = (what) => {
  clearTimeout(timer);
  if (!isTold) console.log(JSON.stringify(what));
  isTold = true;
};

container.on('connection_open', ({ connection }) => {
  tell({ open: true });
  connection.close();
});
container.on('disconnected', ({ error }) => {
  if (error) tell({ error: error.message });
});
container.on('connection_error', () => tell({ error: 'the login was refused' }));
container.on('error', () => tell({ error: 'the login was refused' }));

container.connect({
  port: Number(port),
  host: 'localhost',
  transport: 'tls',
  ca: readFileSync(ca),
  cert: readFileSync(cert),
  key: readFileSync(key),
  enable_sasl_external: true,
  reconnect: false,
});
