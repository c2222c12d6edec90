// The live socket: opens, subscribes, comes back after a loss with growing pauses. It keeps no data.

import { maybeNumber, mustObject } from "./codec.js";
import { mustLiveMessage } from "./records.js";

/** @typedef {import("./records.js").LiveMessage} LiveMessage */
/** @typedef {import("./state.js").Link} Link */
/**
 * `cursor` is where the data that we already have ends. `subscriptions` is asked for on every (re)connect, with
 * the cursor reached so far. `onReturn` is called when the link is back after a loss: read again then, for the
 * server may have forgotten the cursor.
 * @typedef {{cursor: number | null, subscriptions: (cursor: number | null) => object[],
 *   onMessage: (message: LiveMessage) => void, onLink: (link: Link) => void, onReturn: () => void}} LiveOptions
 * @typedef {{resume: (cursor: number | null) => void, close: () => void}} Live
 */

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;

/**
 * @param {number} attempt the first is 0 @param {number} random 0 .. 1
 * @returns {number} milliseconds to wait: doubling, capped, spread over its upper half
 */
export function pauseMs(attempt, random) {
  return Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt) * (0.5 + 0.5 * random);
}

/** @param {URL} address @param {LiveOptions} options @returns {Live} */
export function openLive(address, options) {
  /** @type {WebSocket | null} */
  let socket = null;
  /** @type {number | null} */
  let cursor = options.cursor;
  let [attempt, isClosed, wasLive] = [0, false, false];

  const connect = () => {
    options.onLink(wasLive ? "lost" : "connecting");
    socket = new WebSocket(address);
    socket.onopen = opened;
    socket.onmessage = (event) => receive(event.data);
    socket.onclose = lost;
  };

  const opened = () => {
    attempt = 0;
    subscribe();
    options.onLink("live");
    if (wasLive) options.onReturn();
    wasLive = true;
  };

  const subscribe = () => {
    if (socket?.readyState !== WebSocket.OPEN) return;
    for (const target of options.subscriptions(cursor)) socket.send(JSON.stringify({ subscribe: target }));
  };

  const receive = (/** @type {string} */ text) => {
    const message = mustObject(JSON.parse(text), "message");
    cursor = maybeNumber(message.cursor, "cursor") ?? cursor;
    options.onMessage(mustLiveMessage(message));
  };

  const lost = () => {
    if (isClosed) return;
    options.onLink("lost");
    setTimeout(connect, pauseMs(attempt++, Math.random()));
  };

  connect();
  return {
    resume: (at) => {
      cursor = at;
      subscribe();
    },
    close: () => {
      isClosed = true;
      socket?.close();
    },
  };
}
