/* tg_save and tg_load (tg_storage.h).
 *
 * A slot is a record, the same record again, and the payload, each from a page of its own. The record in front is
 * programmed first and says what was begun; the second one is programmed last and says that all of it is there. A save
 * is complete if its second record is whole and the payload has the CRC-32 that the record names. */
#include <string.h>
#include "tg_storage.h"
#include "tg_image.h"
#include "tg_parts.h"
#include "tg_saved.h"

enum { MAGIC = 0x4b434754, VERSION = 1, RECORD_WORDS = 22, RECORD_BYTES = 4 * RECORD_WORDS };
enum { IS_ACCUMULATING = 1 }; /* a flag */
enum { CHUNK = 64 };          /* bytes on the stack */

/* The record's words, as they lie in storage, little endian. */
enum {
    AT_MAGIC,
    AT_VERSION,
    AT_HASH,
    AT_SEQUENCE = AT_HASH + TG_HASH_WORDS,
    AT_FLAGS,
    AT_DIRECTORY_BYTES,
    AT_PAYLOAD_BYTES,
    AT_PAYLOAD_CRC,
    AT_PAYLOAD_OFFSET, /* in the slot */
    AT_MINIBATCHES,    /* 64 bits, low word first; so are updates */
    AT_UPDATES = AT_MINIBATCHES + 2,
    AT_FROZEN_CRC = AT_UPDATES + 2, /* of what does not train and is not saved */
    AT_SLOT_BYTES,
    AT_SECTOR_BYTES,
    AT_PAGE_BYTES,
    AT_ERASES, /* of all saves so far, this one included */
    AT_RECORD_CRC
};

typedef struct {
    uint32_t word[RECORD_WORDS];
} record_t;

/* A slot as it was found. `latest` is the highest sequence that either of its records names, complete or not. */
typedef struct {
    uint32_t offset, latest;
    int is_complete;
    record_t record;
} slot_t;

static uint32_t rounded_up(uint32_t bytes, uint32_t unit) { return (bytes + unit - 1) / unit * unit; }

static int is_accumulating(const tg_model *m)
{
    unsigned char starts_anew = 1;
    if (TG_SAVED_FLAG >= 0)
        tg_read_part(m, TG_SAVED_FLAG, 0, &starts_anew, 1);
    return !starts_anew;
}

static int saved_tensors(int with_gradients)
{
    return with_gradients ? TG_SAVED_COUNT + TG_SAVED_GRADIENTS : TG_SAVED_COUNT;
}

static uint32_t tensor_bytes(int with_gradients)
{
    uint32_t bytes = 0;
    for (int i = 0; i < saved_tensors(with_gradients); i++)
        bytes += tg_tensors[tg_saved[i]].bytes;
    return bytes;
}

/* ---- what goes into storage: its CRC-32 alone, or programmed page by page */

typedef struct {
    tg_storage *storage; /* null: only the CRC is wanted */
    uint32_t offset;     /* of the page that is being filled */
    uint32_t filled;
    uint32_t crc;
    int has_failed;
} sink_t;

static void program_page(sink_t *sink)
{
    tg_storage *storage = sink->storage;
    unsigned char *page = (unsigned char *)storage->page;
    memset(page + sink->filled, 0xff, storage->page_bytes - sink->filled);
    if (!sink->has_failed && storage->program(storage->context, sink->offset, page) != 0)
        sink->has_failed = 1;
    storage->programs++;
    sink->offset += storage->page_bytes;
    sink->filled = 0;
}

static void put(sink_t *sink, const void *data, uint32_t bytes)
{
    const unsigned char *from = (const unsigned char *)data;
    sink->crc = tg_crc32(sink->crc, from, bytes);
    while (sink->storage != NULL && bytes > 0) {
        uint32_t room = sink->storage->page_bytes - sink->filled, part = bytes < room ? bytes : room;
        memcpy((unsigned char *)sink->storage->page + sink->filled, from, part);
        sink->filled += part;
        from += part;
        bytes -= part;
        if (sink->filled == sink->storage->page_bytes)
            program_page(sink);
    }
}

static void put_tensor(sink_t *sink, const tg_model *m, int index)
{
    unsigned char chunk[CHUNK];
    for (uint32_t at = 0; at < tg_tensors[index].bytes; at += CHUNK) {
        uint32_t left = tg_tensors[index].bytes - at, part = left < CHUNK ? left : CHUNK;
        tg_read_part(m, index, at, chunk, part);
        put(sink, chunk, part);
    }
}

static void put_payload(sink_t *sink, const tg_model *m, int with_gradients)
{
    put(sink, tg_directory, TG_DIRECTORY_BYTES);
    for (int i = 0; i < saved_tensors(with_gradients); i++)
        put_tensor(sink, m, tg_saved[i]);
}

/* What a save relies on without having it: another one's frozen weights would give another model. */
static uint32_t frozen_crc(const tg_model *m)
{
    sink_t sink = {0};
    for (int i = 0; i < TG_FROZEN_COUNT; i++)
        put_tensor(&sink, m, tg_frozen[i]);
    return sink.crc;
}

/* ---- records */

static void record_as_bytes(const record_t *record, unsigned char bytes[RECORD_BYTES])
{
    for (int i = 0; i < RECORD_BYTES; i++)
        bytes[i] = (unsigned char)(record->word[i / 4] >> 8 * (i % 4));
}

static uint32_t record_crc(const record_t *record)
{
    unsigned char bytes[RECORD_BYTES];
    record_as_bytes(record, bytes);
    return tg_crc32(0, bytes, 4 * AT_RECORD_CRC);
}

static uint64_t long_at(const record_t *record, int place)
{
    return record->word[place] | (uint64_t)record->word[place + 1] << 32;
}

static int has_gradients(const record_t *record) { return (record->word[AT_FLAGS] & IS_ACCUMULATING) != 0; }

static int is_same(const uint32_t *a, const uint32_t *b, int words)
{
    for (int i = 0; i < words; i++)
        if (a[i] != b[i])
            return 0;
    return 1;
}

static int read_record(const tg_storage *storage, uint32_t offset, record_t *record)
{
    unsigned char bytes[RECORD_BYTES];
    if (storage->read(storage->context, offset, bytes, RECORD_BYTES) != 0)
        return 0;
    for (int i = 0; i < RECORD_WORDS; i++)
        record->word[i] = tg_image_word(bytes, i);
    return record->word[AT_MAGIC] == MAGIC && record->word[AT_RECORD_CRC] == record_crc(record);
}

static int program_record(tg_storage *storage, uint32_t offset, const record_t *record)
{
    sink_t sink = {.storage = storage, .offset = offset};
    unsigned char bytes[RECORD_BYTES];
    record_as_bytes(record, bytes);
    put(&sink, bytes, RECORD_BYTES);
    if (sink.filled > 0)
        program_page(&sink);
    return !sink.has_failed;
}

/* ---- slots */

static int payload_is_whole(const tg_storage *storage, uint32_t offset, const record_t *record)
{
    uint32_t at = record->word[AT_PAYLOAD_OFFSET], bytes = record->word[AT_PAYLOAD_BYTES], crc = 0;
    if (at > storage->bytes / 2 || bytes > storage->bytes / 2 - at)
        return 0;
    while (bytes > 0) {
        uint32_t part = bytes < storage->page_bytes ? bytes : storage->page_bytes;
        if (storage->read(storage->context, offset + at, storage->page, part) != 0)
            return 0;
        crc = tg_crc32(crc, (const unsigned char *)storage->page, part);
        at += part;
        bytes -= part;
    }
    return crc == record->word[AT_PAYLOAD_CRC];
}

static slot_t look_at(const tg_storage *storage, int number)
{
    slot_t slot = {.offset = (uint32_t)number * (storage->bytes / 2)};
    record_t begun;
    if (read_record(storage, slot.offset, &begun))
        slot.latest = begun.word[AT_SEQUENCE];
    if (!read_record(storage, slot.offset + rounded_up(RECORD_BYTES, storage->page_bytes), &slot.record))
        return slot;
    if (slot.record.word[AT_SEQUENCE] > slot.latest)
        slot.latest = slot.record.word[AT_SEQUENCE];
    /* Of another version only the magic, the version, the sequence and the record's CRC are known to mean the same. */
    slot.is_complete = slot.record.word[AT_VERSION] != VERSION || payload_is_whole(storage, slot.offset, &slot.record);
    return slot;
}

/* The slot with the last complete save, or -1. */
static int last_complete(const slot_t slots[2])
{
    if (!slots[0].is_complete && !slots[1].is_complete)
        return -1;
    if (slots[0].is_complete && slots[1].is_complete)
        return slots[1].record.word[AT_SEQUENCE] > slots[0].record.word[AT_SEQUENCE];
    return slots[1].is_complete;
}

static tg_status check_storage(const tg_model *m, const tg_storage *storage)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (storage == NULL || storage->page == NULL)
        return TG_NULL_POINTER;
    if (storage->erase == NULL || storage->program == NULL || storage->read == NULL)
        return TG_NULL_POINTER;
    if (storage->page_bytes == 0 || storage->sector_bytes == 0 || storage->sector_bytes % storage->page_bytes != 0)
        return TG_BAD_SIZE;
    if (storage->bytes == 0 || storage->bytes / 2 % storage->sector_bytes != 0 || storage->bytes % 2 != 0)
        return TG_BAD_SIZE;
    /* so that both records can be looked for, whatever the storage holds */
    return 2 * rounded_up(RECORD_BYTES, storage->page_bytes) > storage->bytes / 2 ? TG_STORAGE_SMALL : TG_OK;
}

static record_t new_record(const tg_model *m, const tg_storage *storage, const slot_t slots[2], int with_gradients)
{
    static const uint32_t hash[TG_HASH_WORDS] = {TG_SAVED_HASH};
    int last = last_complete(slots);
    uint32_t sequence = slots[0].latest > slots[1].latest ? slots[0].latest : slots[1].latest;
    sink_t sink = {0};
    record_t record = {{MAGIC, VERSION}};
    put_payload(&sink, m, with_gradients);
    memcpy(&record.word[AT_HASH], hash, sizeof hash);
    record.word[AT_SEQUENCE] = sequence + 1;
    record.word[AT_FLAGS] = with_gradients ? IS_ACCUMULATING : 0;
    record.word[AT_DIRECTORY_BYTES] = TG_DIRECTORY_BYTES;
    record.word[AT_PAYLOAD_BYTES] = TG_DIRECTORY_BYTES + tensor_bytes(with_gradients);
    record.word[AT_PAYLOAD_CRC] = sink.crc;
    record.word[AT_PAYLOAD_OFFSET] = 2 * rounded_up(RECORD_BYTES, storage->page_bytes);
    record.word[AT_MINIBATCHES] = (uint32_t)m->minibatches;
    record.word[AT_MINIBATCHES + 1] = (uint32_t)(m->minibatches >> 32);
    record.word[AT_UPDATES] = (uint32_t)m->updates;
    record.word[AT_UPDATES + 1] = (uint32_t)(m->updates >> 32);
    record.word[AT_FROZEN_CRC] = frozen_crc(m);
    record.word[AT_SLOT_BYTES] = storage->bytes / 2;
    record.word[AT_SECTOR_BYTES] = storage->sector_bytes;
    record.word[AT_PAGE_BYTES] = storage->page_bytes;
    if (last >= 0 && slots[last].record.word[AT_VERSION] == VERSION)
        record.word[AT_ERASES] = slots[last].record.word[AT_ERASES];
    return record;
}

/* Erases, programs, reads back. */
static tg_status write_slot(const tg_model *m, tg_storage *storage, uint32_t offset, const record_t *record)
{
    uint32_t used = record->word[AT_PAYLOAD_OFFSET] + record->word[AT_PAYLOAD_BYTES];
    sink_t sink = {.storage = storage, .offset = offset + record->word[AT_PAYLOAD_OFFSET]};
    record_t written;
    for (uint32_t at = 0; at < used; at += storage->sector_bytes) {
        storage->erases++;
        if (storage->erase(storage->context, offset + at) != 0)
            return TG_STORAGE_FAILED;
    }
    if (!program_record(storage, offset, record))
        return TG_STORAGE_FAILED;
    put_payload(&sink, m, has_gradients(record));
    if (sink.filled > 0)
        program_page(&sink);
    if (sink.has_failed || !payload_is_whole(storage, offset, record))
        return TG_STORAGE_FAILED;
    offset += rounded_up(RECORD_BYTES, storage->page_bytes);
    if (!program_record(storage, offset, record) || !read_record(storage, offset, &written))
        return TG_STORAGE_FAILED;
    return is_same(written.word, record->word, RECORD_WORDS) ? TG_OK : TG_STORAGE_FAILED;
}

tg_status tg_save(tg_model *m, tg_storage *storage)
{
    tg_status status = check_storage(m, storage);
    if (status != TG_OK && status != TG_STORAGE_SMALL)
        return status;
    int with_gradients = is_accumulating(m);
    uint32_t used = 2 * rounded_up(RECORD_BYTES, storage->page_bytes) + TG_DIRECTORY_BYTES;
    uint32_t slot_bytes = rounded_up(used + tensor_bytes(with_gradients), storage->sector_bytes);
    storage->needed_bytes = 2 * slot_bytes;
    if (status == TG_STORAGE_SMALL || slot_bytes > storage->bytes / 2)
        return TG_STORAGE_SMALL;
    slot_t slots[2] = {look_at(storage, 0), look_at(storage, 1)};
    int other = last_complete(slots) == 0;
    record_t record = new_record(m, storage, slots, with_gradients);
    record.word[AT_ERASES] += slot_bytes / storage->sector_bytes;
    record.word[AT_RECORD_CRC] = record_crc(&record);
    status = write_slot(m, storage, slots[other].offset, &record);
    storage->saves += status == TG_OK;
    return status;
}

/* The tensors of a save whose payload was found whole. Read a second time: the CRC says whether it was the same. */
static tg_status read_tensors(tg_model *m, const tg_storage *storage, const slot_t *slot)
{
    uint32_t at = slot->offset + slot->record.word[AT_PAYLOAD_OFFSET], crc = 0;
    uint32_t directory = slot->record.word[AT_DIRECTORY_BYTES];
    unsigned char chunk[CHUNK];
    for (uint32_t part; directory > 0; at += part, directory -= part) {
        part = directory < CHUNK ? directory : CHUNK;
        if (storage->read(storage->context, at, chunk, part) != 0)
            return TG_STORAGE_FAILED;
        crc = tg_crc32(crc, chunk, part);
    }
    for (int i = 0; i < saved_tensors(has_gradients(&slot->record)); i++) {
        uint32_t bytes = tg_tensors[tg_saved[i]].bytes;
        for (uint32_t from = 0, part; from < bytes; from += part, at += part) {
            part = bytes - from < CHUNK ? bytes - from : CHUNK;
            if (storage->read(storage->context, at, chunk, part) != 0)
                return TG_STORAGE_FAILED;
            crc = tg_crc32(crc, chunk, part);
            tg_write_part(m, tg_saved[i], from, chunk, part);
        }
    }
    return crc == slot->record.word[AT_PAYLOAD_CRC] ? TG_OK : TG_STORAGE_FAILED;
}

static tg_status check_record(const tg_model *m, const record_t *record)
{
    static const uint32_t hash[TG_HASH_WORDS] = {TG_SAVED_HASH};
    uint32_t tensors = record->word[AT_PAYLOAD_BYTES] - record->word[AT_DIRECTORY_BYTES];
    int with_gradients = has_gradients(record);
    if (record->word[AT_VERSION] != VERSION)
        return TG_OTHER_VERSION;
    if (!is_same(&record->word[AT_HASH], hash, TG_HASH_WORDS) || record->word[AT_FROZEN_CRC] != frozen_crc(m))
        return TG_OTHER_MODEL;
    /* The middle of an accumulation means nothing to a program that keeps no gradients. */
    if ((with_gradients && TG_SAVED_FLAG < 0) || tensors != tensor_bytes(with_gradients))
        return TG_BAD_SIZE;
    return TG_OK;
}

tg_status tg_load(tg_model *m, tg_storage *storage)
{
    tg_status status = check_storage(m, storage);
    if (status != TG_OK)
        return status;
    slot_t slots[2] = {look_at(storage, 0), look_at(storage, 1)};
    int last = last_complete(slots);
    if (last < 0)
        return TG_NO_SAVE;
    status = check_record(m, &slots[last].record);
    if (status != TG_OK)
        return status;
    status = read_tensors(m, storage, &slots[last]);
    if (status != TG_OK) {
        m->state = NULL; /* half of it is there: nothing runs on this instance until tg_init */
        return status;
    }
    unsigned char starts_anew = !has_gradients(&slots[last].record);
    if (TG_SAVED_FLAG >= 0)
        tg_write_part(m, TG_SAVED_FLAG, 0, &starts_anew, 1);
#ifdef TG_GUARD
    m->is_kept = 0;
#endif
    m->minibatches = long_at(&slots[last].record, AT_MINIBATCHES);
    m->updates = long_at(&slots[last].record, AT_UPDATES);
    return slots[!last].latest > slots[last].record.word[AT_SEQUENCE] ? TG_OLDER_SAVE : TG_OK;
}
