import { HORN, LIVE_SCRIPT, MANIFEST, STYLE } from './assets.ts';
import { type Html, html } from './html.ts';
import { horn, ICONS } from './icons.ts';

/** A whole page that stands alone. Layout is here alone: pages give their content and nothing else. */
export function page(title: string, content: Html): string {
  return document(
    title,
    html`<body>
<div class="alone">
<header><span class="brand">${horn(28)} Posthorn</span></header>
<main>
<h1>${title}</h1>
${content}
</main>
</div>
</body>`,
  );
}

const PLACES = [
  { place: 'inbox', path: '/owner', word: 'Inbox' },
  { place: 'agents', path: '/owner/agents', word: 'Agents' },
  { place: 'connections', path: '/owner/connections', word: 'Connections' },
  { place: 'connect', path: '/owner/connect', word: 'Connect' },
  { place: 'activity', path: '/owner/activity', word: 'Activity' },
  { place: 'settings', path: '/owner/settings', word: 'Settings' },
] as const;

export type Place = (typeof PLACES)[number]['place'];

export interface AppPage {
  place: Place;
  title: string;
  owner: { label: string };
  formToken: string;
  /** How many requests wait for the owner. */
  waiting: number;
  /**
   * Where the page can be asked for again, and how often without being told that something changed, in seconds; none
   * for an answer that is shown once.
   */
  live: { path: string; seconds: number | undefined } | undefined;
  /** What was just done. */
  said?: string | undefined;
  /** What was just refused. */
  problem?: string | undefined;
  content: Html;
}

/** A page of the app, with the places that one can go to beside it. */
export function appPage({ place, title, owner, formToken, waiting, live, said, problem, content }: AppPage): string {
  const requests = waiting === 1 ? '1 request waits for you' : `${waiting} requests wait for you`;
  return document(
    waiting > 0 ? `(${waiting}) ${title}` : title,
    html`<body${live && html` data-live="${live.path}"${live.seconds !== undefined && html` data-live-seconds="${live.seconds}"`}`}>
<a class="skip" href="#here">Skip to the content</a>
<div class="app">
<header class="side">
<a class="brand" href="/owner">${horn(28)} Posthorn</a>
<nav aria-label="Places">
<ul class="places">${PLACES.map(
      (each) =>
        html`<li><a href="${each.path}"${each.place === place && html` aria-current="page"`}>${ICONS[each.place]}<span>${each.word}</span>${
          each.place === 'inbox' &&
          waiting > 0 &&
          html` <span class="count">${waiting}<span class="unseen"> waiting</span></span>`
        }</a></li>`,
    )}</ul>
</nav>
<form class="account" method="post" action="/owner/sign-out">
<input type="hidden" name="form_token" value="${formToken}">
<p><span>You are signed in as </span><strong>${owner.label}</strong></p>
<div><button class="small">Sign out</button></div>
</form>
</header>
<main class="here" id="here" tabindex="-1">
<h1>${title}</h1>
<p class="unseen" role="status">${waiting > 0 && requests}</p>
${said && html`<p class="said" id="said" role="status">${said}</p>`}
${problem && html`<p class="problem" id="problem" role="alert">${problem}</p>`}
${content}
</main>
</div>
<script type="module" src="${LIVE_SCRIPT.path}"></script>
</body>`,
  );
}

function document(title: string, body: Html): string {
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${title} · Posthorn</title>
<link rel="icon" type="image/svg+xml" href="${HORN.path}">
<link rel="manifest" href="${MANIFEST.path}">
<link rel="stylesheet" href="${STYLE.path}">
</head>
${body}
</html>
`.markup;
}
