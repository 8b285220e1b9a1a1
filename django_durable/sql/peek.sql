-- The first due jobs of all lanes.
-- include: heads
ORDER BY lanes.priority DESC, head.due_at, head.id
LIMIT %(reach)s
