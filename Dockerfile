# The server tier: `serve` (default), `worker`, `migrate` and the person's commands, for a PostgreSQL of its own.
FROM node:24-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
# No install scripts: they bring a Node, which is here, and an embedded PostgreSQL, which an image does not need.
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json ./
COPY src src
COPY jobs jobs
RUN npm run build && npm prune --omit=dev --omit=optional --ignore-scripts

FROM node:24-slim
ENV NODE_ENV=production \
    POSTHORN_HOST=0.0.0.0 \
    POSTHORN_PORT=7070 \
    POSTHORN_DATA_DIR=/var/lib/posthorn
RUN install --directory --owner=node --group=node --mode=0700 /var/lib/posthorn
WORKDIR /app
COPY package.json ./
COPY --from=build /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY jobs/crontab jobs/crontab
COPY sql sql
USER node
VOLUME /var/lib/posthorn
EXPOSE 7070
ENTRYPOINT ["node", "dist/src/main.js"]
CMD ["serve"]
