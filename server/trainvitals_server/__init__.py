"""The trainvitals server: takes what reporters send, says what is going wrong, shows it and tells people."""
