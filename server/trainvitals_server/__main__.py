"""`python -m trainvitals_server` is `trainvitals`."""

import sys

from trainvitals_server.cli import main

sys.exit(main())
