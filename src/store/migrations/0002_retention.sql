-- What has ended does not stay for ever: the sweep looks for a session's oldest checkpoints.
create index checkpoints_by_session on checkpoints (session, id);
