# syntax=docker/dockerfile:1
# The server and the page, without TensorFlow: trainings report to it from wherever they run.
#
#   docker build -t trainvitals .
#   docker run -p 8765:8765 -v trainvitals:/data -e TRAINVITALS_SERVER_TOKEN=... trainvitals
#
# Inside a container the server must listen beyond loopback, so it needs a token; see README.md.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY client_lib client_lib
COPY server server
COPY web web
RUN python -m venv /opt/trainvitals \
 && /opt/trainvitals/bin/pip install --no-cache-dir '.[server]' \
 && /opt/trainvitals/bin/python -m compileall -q /opt/trainvitals/lib

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin trainvitals \
 && install -d -o trainvitals -g trainvitals /data
COPY --from=build /opt/trainvitals /opt/trainvitals
ENV PATH=/opt/trainvitals/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TRAINVITALS_SERVER_HOST=0.0.0.0 \
    TRAINVITALS_SERVER_PORT=8765 \
    TRAINVITALS_SERVER_DATA=/data
USER trainvitals
WORKDIR /data
VOLUME /data
EXPOSE 8765
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['TRAINVITALS_SERVER_PORT'] + '/livez', timeout=4)"]
ENTRYPOINT ["trainvitals"]
CMD ["serve"]
