-- Which stakes of its incident an alert has told: what comes on top is told once.
ALTER TABLE alert ADD COLUMN told TEXT NOT NULL DEFAULT '';
