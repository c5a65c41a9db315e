// Requests whose prompt one group computes and whose answer another group gives, as the frontend
// sees them.
#pragma once

#include "frontend/frontend.h"
#include "kv_transfer/kv_transfer.h"

namespace llmsim {

class KvTransferDelivery final : public Delivery {
 public:
  KvTransferDelivery(KvTransfers& transfers, Frontend& frontend)
      : prefill_side_(transfers, frontend),
        decode_side_(transfers, frontend),
        transfers_(transfers),
        frontend_(frontend) {}

  bool deliver(RequestId request, Group& prefill, Ps now) override {
    if (!transfers_.arrive(request, prefill, now)) return false;
    if (transfers_.of(request).brought) frontend_.router().finished(request);
    prefill.wake_if_idle(now);
    return true;
  }
  bool give_up(RequestId request, Group&, Ps now) override {
    const bool prefilling = transfers_.of(request).prefilling();
    if (transfers_.of(request).decode_group >= 0) transfers_.router().finished(request);
    transfers_.give_up(request, now);
    return prefilling;
  }
  bool passes_on_whole() const override { return !transfers_.pushes(); }
  void withdraw(RequestId request, Router& router) override {
    if (transfers_.of(request).prefilling()) router.finished(request);
    if (transfers_.of(request).decode_group >= 0) transfers_.router().finished(request);
  }
  // Who hears of the steps of prefill groups, and of decode groups.
  Completion& prefill_side() { return prefill_side_; }
  Completion& decode_side() { return decode_side_; }

 private:
  // A prompt has been computed: its prefill group is done with the request, unless KV has still to
  // be read there.
  struct PrefillSide final : Completion {
    PrefillSide(KvTransfers& t, Frontend& f) : transfers(t), frontend(f) {}
    void step_done(std::span<const RequestId> finished, std::span<const Item> items,
                   Ps now) override {
      for (const RequestId request : finished) {
        if (!frontend.gave_up(request)) frontend.router().finished(request);
        transfers.prefilled(request, now);
      }
      for (const Item& item : items)
        if (!item.emits) transfers.computed(item, now);
    }
    void failed(RequestId, Ps) override {}  // nothing is loaded there
    KvTransfers& transfers;
    Frontend& frontend;
  };
  struct DecodeSide final : Completion {
    DecodeSide(KvTransfers& t, Frontend& f) : transfers(t), frontend(f) {}
    void step_done(std::span<const RequestId> finished, std::span<const Item> items,
                   Ps now) override {
      for (const RequestId request : finished)
        if (!frontend.gave_up(request)) transfers.router().finished(request);
      frontend.answered(finished, items, now);
    }
    void failed(RequestId request, Ps now) override {
      if (!frontend.gave_up(request)) transfers.router().finished(request);
      frontend.ended_in_error(request, now);
    }
    KvTransfers& transfers;
    Frontend& frontend;
  };

  PrefillSide prefill_side_;
  DecodeSide decode_side_;
  KvTransfers& transfers_;
  Frontend& frontend_;
};

}  // namespace llmsim
