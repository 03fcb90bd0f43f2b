#!/usr/bin/env bash
# Debian packages that some tests need: a browser for the report's page. Without them those tests are skipped.
# Tries where it can (apt-get and root), says so where it can't, and never fails.
set -u
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
  echo "chromium is there"
elif ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "chromium is not there and can't be installed here (no apt-get, or not root): browser tests will be skipped"
else
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq &&
    apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null ||
    echo "chromium could not be installed: browser tests will be skipped"
fi
exit 0
