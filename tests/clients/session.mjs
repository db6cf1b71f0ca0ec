// Drives one node through the TypeScript SDK and prints what it got as one JSON object; the Rust test judges it.
//
//   session.mjs MODE CHAT SESSION --url URL
//   session.mjs MODE CHAT SESSION --stdio PROGRAM ARGUMENT...
//
// MODE is `legacy` (2025-11-25), `auto` (probes with server/discover, then falls back, as ChatGPT does), or a revision to
// insist on.

import { existsSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const [mode, chat, session, kind, ...rest] = process.argv.slice(2);
const negotiation = { legacy: { mode: 'legacy' }, auto: { mode: 'auto' } }[mode] ?? { mode: { pin: mode } };
const client = new Client({ name: 'chappie-tests', version: '1.0.0' }, { versionNegotiation: negotiation });
const transport = kind === '--url'
  ? new StreamableHTTPClientTransport(new URL(rest[0]))
  : new StdioClientTransport({ command: rest[0], args: rest.slice(1), env: process.env });
await client.connect(transport);

const report = { steps: {} };
report.protocol = client.getNegotiatedProtocolVersion();
report.server = client.getServerVersion()?.name;
report.instructions = client.getInstructions() ?? '';
report.tools = (await client.listTools()).tools.map((tool) => tool.name);

async function step(name, tool, args, options) {
  const request = { name: tool, arguments: { sessionId: session, ...args }, _meta: { 'openai/session': chat } };
  report.steps[name] = await client.callTool(request, options);
}

await step('init', 'init', {});
await step('sessions', 'sessions', {});
await step('write', 'write', { path: 'notes/a.txt', content: 'one\ntwo\n' });
await step('read', 'read', { path: 'notes/a.txt' });
await step('edit', 'edit', { path: 'notes/a.txt', edits: [{ oldText: 'two', newText: 'three' }] });
await step('bash', 'bash', { command: 'cat notes/a.txt; echo from-bash' });
await step('call', 'call', {
  calls: [
    { name: 'read', arguments: { path: 'notes/a.txt' } },
    { name: 'bash', arguments: { command: 'echo from-call' } },
  ],
});
await step('error', 'read', { path: 'missing.txt' });
await step('image', 'read', { path: 'picture.png' });
const giveUp = new AbortController();
const running = step('cancelled', 'bash', { command: 'touch begun; sleep 31' }, { signal: giveUp.signal });
while (!existsSync('begun')) await pause(50);
giveUp.abort(new Error('the test gave up'));
await running.catch(() => {});
await step('after', 'bash', { command: 'echo after-cancel' });
await step('history', 'history', { limit: 50 });
await client.close();
console.log(JSON.stringify(report));
