"""What a run of clauses found: the findings by cause, and their text, JSON, HTML, JUnit, SARIF and badge."""
