"""`python -m mimetic`."""

from mimetic.cli.app import main

raise SystemExit(main())
